"""One set of runs and its report, for all tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparrow_core.report.report import Report, write_report
from tests.report import runs


@pytest.fixture(scope="session")
def run_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    calibration = runs.calibration(root / "cal", ("mean_landmark", "quest"))
    single = runs.calibration(root / "single")
    return {
        "calibration": calibration,
        "measured": runs.measured_run(root / "eight", 8),
        "replay": runs.closed_loop(root / "replay", single),
        "training": runs.training_run(root / "rl"),
        "training again": runs.training_run(root / "rl-2", steps=8, seed=1),
    }


@pytest.fixture(scope="session")
def full_report(run_dirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Report:
    return write_report(list(run_dirs.values()), tmp_path_factory.mktemp("report") / "report.html")
