from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(name, {group: {plugin: target}}, {module: source})`` puts a distribution on ``sys.path``."""
    before = set(sys.modules)

    def add(name: str, plugins: dict[str, dict[str, str]], modules: dict[str, str] | None = None) -> Path:
        root = tmp_path / name
        info = root / f"{name}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        lines = [f"[{g}]\n" + "".join(f"{n} = {t}\n" for n, t in entries.items()) for g, entries in plugins.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for module, source in (modules or {}).items():
            (root / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(str(root))
        return root

    yield add
    for module in set(sys.modules) - before:
        if module.startswith("fake_"):
            del sys.modules[module]


GOOD_POLICY = """
from sparrow_policies.static import StaticPolicy


class Policy(StaticPolicy):
    pass
"""


@pytest.fixture
def good_policy() -> str:
    """Source of a module whose ``Policy`` fulfils the contract."""
    return GOOD_POLICY
