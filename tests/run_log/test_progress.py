"""What a run prints while it trains."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from sparrow_core.engine.stats import EngineStats
from sparrow_core.train_log import StepRecord
from sparrow_trainers.run_log import TrainProgress
from sparrow_trainers.run_log.progress import summary
from tests.run_log import records

METRICS = {
    "reward/mean": 0.4375,
    "response/length_mean": 812.3,
    "mismatch/kept_fraction": 0.25,
    "rollout/tokens_per_second": 5662.0,
}


def _train(console: Console | None) -> None:
    progress = TrainProgress(console)
    with progress.steps(5, start=3) as done:
        for step in (3, 4):
            with progress.rollout(step) as update:
                update(EngineStats(num_sequences=2, finished=1, generated_tokens=30, max_generated_tokens=40))
                progress._bars.refresh()
            done(records.record(step, **METRICS))


def test_a_terminal_shows_both_bars_and_keeps_one() -> None:
    out = io.StringIO()
    _train(Console(file=out, force_terminal=True, width=160))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "rollout of step 4" in text
    assert "30/40" in text
    assert "1/2 done" in text
    assert "3/5" in text
    last = text.strip().splitlines()[-1]
    assert "5/5" in last
    assert "reward 0.438, length 812, tail 0.7" in last
    assert "kept 25%, 5,662 tok/s" in last


def test_a_file_gets_a_line_per_step() -> None:
    out = io.StringIO()
    _train(Console(file=out, width=160))
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 4/5", "step 5/5"]
    assert all("reward 0.438, length 812" in line for line in lines)


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    _train(None)
    assert capsys.readouterr() == ("", "")


def test_what_is_not_known_is_left_out() -> None:
    assert summary(StepRecord(0, 0, {})) == ""
    assert summary(StepRecord(0, 0, {"reward/mean": 1.0})) == "reward 1.000"
    worst = min(each.tail_lower for each in records.record(0).bins if each.tail_lower is not None)
    assert summary(records.record(0, loss=1.0)) == f"tail {worst:.3f}"
