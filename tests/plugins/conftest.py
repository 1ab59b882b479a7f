"""The example plugins installed as a user would, and broken plugins beside them, in a directory of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from sparrow_core.cli import common

EXAMPLES = Path(__file__).parents[2] / "examples"

BROKEN = '''
"""Policies with one defect each."""

from typing import Any

import torch

from sparrow_core.contracts import PluginConfig
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.train_contracts import Reward
from sparrow_policies.static import StaticConfig, StaticPolicy


class Config(StaticConfig):
    pages: int = 32


class RaisesInObserve(StaticPolicy):
    Config = Config

    def observe(self, mismatch: Any) -> None:
        raise ZeroDivisionError("no tokens in bin 3")


class TooFewPages(StaticPolicy):
    Config = Config

    def schedule(self) -> BudgetSchedule:
        return BudgetSchedule((2,), sink_pages=0, recent_pages=1)

    def budgets(self, lengths_B: torch.Tensor, keys: Any) -> torch.Tensor:
        return torch.full_like(lengths_B, 2)


class Old(StaticPolicy):
    api_version = 0
    Config = Config


class ScoresNothing(Reward):
    Config = PluginConfig

    def score(self, completion: Any) -> float:
        return 0.0


class Dies(StaticPolicy):
    Config = Config

    def schedule(self) -> BudgetSchedule:
        import os

        os.abort()
'''

ENTRY_POINTS = """
[sparrow.policies]
raises_in_observe = broken_policies:RaisesInObserve
too_few_pages = broken_policies:TooFewPages
old = broken_policies:Old
dies = broken_policies:Dies
no_import = broken_import:Policy
shared_name = broken_policies:RaisesInObserve

[sparrow.rewards]
shared_name = broken_policies:ScoresNothing
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both examples, built and installed by pip, and a distribution of broken plugins."""
    pytest.importorskip("hatchling", reason="building the examples without a network needs hatchling")
    target = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    packages = [str(EXAMPLES / name) for name in ("plugin_policy", "plugin_backend")]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    info = target / "broken_plugins-3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugins\nVersion: 3.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (target / "broken_policies.py").write_text(BROKEN)
    (target / "broken_import.py").write_text("import a_package_that_is_not_there\n")
    return target


@pytest.fixture
def site(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """``installed`` on the path of this process; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setattr(common, "console", Console(width=250, highlight=False))
    yield installed
    for module in set(sys.modules) - before:
        if str(installed) in (getattr(sys.modules[module], "__file__", None) or ""):
            del sys.modules[module]
