"""``sparrow schedule`` and ``sparrow cost``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparrow_core.cli import main
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.schedule_file import ScheduleFile, write_schedule
from tests.cli.test_rollout_commands import model_dir  # noqa: F401


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    file = ScheduleFile(BudgetSchedule((8, 16, 32)), "my-model", "mean_landmark", {"tau": 0.86})
    return write_schedule(tmp_path / "schedule.json", file)


def test_show_prints_pages_and_provenance(schedule: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["schedule", "show", str(schedule)]) == 0
    out = capsys.readouterr().out
    for word in ("my-model", "0-1999", "4000+", "32", "tau: 0.86"):
        assert word in out
    assert main(["schedule", "show", "qwen3-8b-0.86"]) == 0
    assert "448" in capsys.readouterr().out


def test_diff_tells_equal_from_different(schedule: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["schedule", "diff", str(schedule), str(schedule)]) == 0
    assert main(["schedule", "diff", "qwen3-4b-0.80", "qwen3-4b-0.86"]) == 1
    assert "pages from 2000 tokens: 32 | 48" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["model.source=other-model"], "model 'my-model', not 'other-model'"),
        (["model.source=my-model", "attention.selector=quest"], "selector 'mean_landmark', not 'quest'"),
        (["model.source=my-model", "attention.page_size=32"], "page_size=16"),
    ],
)
def test_check_refuses_a_schedule_made_for_something_else(
    schedule: Path, overrides: list[str], word: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["schedule", "check", str(schedule), *overrides]) == 2
    assert word in capsys.readouterr().err
    assert main(["schedule", "check", str(schedule), "model.source=my-model"]) == 0


def test_a_schedule_for_another_model_is_refused_before_a_rollout(
    schedule: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["rollout", f"policy={{type: schedule, file: {schedule}}}"]) == 2
    assert "made for model 'my-model'" in capsys.readouterr().err


def test_a_schedule_edited_to_fall_with_length_is_refused(schedule: Path, capsys: pytest.CaptureFixture) -> None:
    data = json.loads(schedule.read_text())
    data["pages"] = [8, 32, 16]
    schedule.write_text(json.dumps(data))
    assert main(["schedule", "show", str(schedule)]) == 2
    assert "pages[2]=16" in capsys.readouterr().err


def test_an_unknown_preset_lists_the_known_ones(capsys: pytest.CaptureFixture) -> None:
    assert main(["schedule", "show", "qwen3-8b-0.85"]) == 2
    assert "qwen3-8b-0.86" in capsys.readouterr().err


def test_cost_measure_times_steps_and_fits(model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:  # noqa: F811
    table = tmp_path / "cost.json"
    arguments = ["model.device=cpu", f"model.source={model_dir}", "attention.page_size=4", "--output", str(table)]
    options = ["--batches", "1,2", "--lengths", "40,80,150", "--budgets", "5,12", "--repeats", "1"]
    assert main(["cost", "measure", *arguments, *options]) == 0
    assert "relative error" in capsys.readouterr().out
    rows = json.loads(table.read_text())["rows"]
    assert len(rows) == 2 * (2 + 3 + 3)
    assert all(row["seconds"] > 0 for row in rows)
    assert main(["cost", "measure", *arguments, "--lengths", "900"]) == 2
    assert "900" in capsys.readouterr().err
    assert main(["cost", "measure", *arguments, "--batches", "two"]) == 2
