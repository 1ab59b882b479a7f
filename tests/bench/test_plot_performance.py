from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sparrow_core.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plots() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plot_performance", ROOT / "benchmarks" / "plot_performance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_bars_become_a_plot_and_a_table(plots: ModuleType, tmp_path: Path) -> None:
    result = tmp_path / "kernels.json"
    case = "--case dense:2:64:2 --rounds 1 --device cpu --kv-heads 2 --head-dim 16 --json"
    assert main(["bench", "kernels", *case.split(), str(result)]) == 0
    row = json.loads(result.read_text())["rows"][0]
    plots.main([str(tmp_path / "out"), str(result)])
    assert (tmp_path / "out" / "kernels.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "out" / "performance.md").read_text()
    assert f"| dense B2 64 g2 | ours | {row['seconds']['ours'] * 1e6:.3f} | {row['floor'] * 1e6:.3f} |" in table


def test_a_trajectory_is_shown_per_token_of_a_row(plots: ModuleType) -> None:
    seconds, floors = {"dense": 8.0, "sparse": 4.0}, {"dense": 4.0, "sparse": 2.0}
    case = {"model": "random:qwen3-1.7b", "batch": 4, "length": 101, "schedule": "s"}
    row = {"kind": "trajectory", "case": case, "tokens": 400, "seconds": seconds, "floors": floors}
    bars = plots.bars_of({"bench": "rollout", "rows": [row, {"kind": "end_to_end"}]})
    assert [(b.name, b.seconds, b.floor) for b in bars] == [("dense", 0.08, 0.04), ("sparse", 0.04, 0.02)]
    assert bars[0].case == "trajectory qwen3-1.7b B4 101"


@pytest.mark.parametrize(
    ("content", "message"), [({"rows": []}, "no key 'bench'"), ({"bench": "plan", "rows": []}, "no result has times")]
)
def test_other_files_are_refused(
    plots: ModuleType, tmp_path: Path, content: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit):
        plots.main([str(tmp_path / "out"), str(path)])
    assert message in capsys.readouterr().err
