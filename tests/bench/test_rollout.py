from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparrow_core.bench.rollout import RolloutCase, integrated, pages_of, rollout_cases
from sparrow_core.cli import main
from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.schedule_file import ScheduleFile, write_schedule

SIZES = ["--rounds", "1", "--repeats", "1", "--device", "cpu", "--hardware", "h200", "attention.page_size=4"]


@pytest.fixture(scope="module")
def schedule(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("schedule") / "short.json"
    budgets = BudgetSchedule((4, 6, 8), bin_tokens=20, page_size=4)
    write_schedule(path, ScheduleFile(budgets, "tiny", "mean_landmark", {}))
    return str(path)


def test_integration_of_a_straight_line_is_exact() -> None:
    at = [1, 4, 10, 31]
    assert integrated(at, [2.0 * x + 1 for x in at]) == pytest.approx((31**2 + 31) - (1 + 1))


def test_budgets_are_the_schedules_at_bin_edges() -> None:
    budgets = BudgetSchedule((4, 6, 8), bin_tokens=20, page_size=4)
    assert pages_of(budgets, [1, 19, 20, 39, 40, 1000]) == [4, 4, 6, 6, 8, 8]


def test_models_take_their_own_published_schedule_unless_one_is_named() -> None:
    models = ["random:qwen3-1.7b", "random:qwen3-8b"]
    assert [case.schedule for case in rollout_cases(models, [8], [32768], [])] == ["qwen3-1.7b-0.86", "qwen3-8b-0.86"]
    case = RolloutCase("random:qwen3-1.7b", 8, 32768, "qwen3-1.7b-0.86")
    assert case.policy(SparseLayout()).schedule().num_bins == 20
    with pytest.raises(InputError, match=r"attention\.page_size=4"):
        case.policy(SparseLayout(page_size=4))


def test_steady_and_trajectory(tiny_source: str, schedule: str, tmp_path: Path) -> None:
    out = tmp_path / "rollout.json"
    options = f"bench rollout --model {tiny_source} --batch 4 --length 80 --schedule {schedule} --steady --trajectory"
    assert main([*options.split(), *SIZES, "--json", str(out)]) == 0
    steady, trajectory = json.loads(out.read_text())["rows"]
    assert (steady["kind"], trajectory["kind"]) == ("steady", "trajectory")
    assert steady["tokens_per_second"]["sparse"] == pytest.approx(4 / steady["seconds"]["sparse"])
    lengths = [point["length"] for point in trajectory["points"]]
    assert len(lengths) == 16
    assert (lengths[0], lengths[-1]) == (1, 80)
    for name in ("dense", "sparse"):
        at_points = [point["seconds"][name] for point in trajectory["points"]]
        assert trajectory["seconds"][name] == pytest.approx(integrated(lengths, at_points))
        assert trajectory["tokens_per_second"][name] == pytest.approx(4 * 79 / trajectory["seconds"][name])
    assert trajectory["floor_speedup"] > 1


def test_end_to_end_generates_to_the_forced_length(tiny_source: str, schedule: str, tmp_path: Path) -> None:
    out = tmp_path / "rollout.json"
    options = f"bench rollout --model {tiny_source} --batch 3 --length 40 --schedule {schedule} --end-to-end"
    assert main([*options.split(), "--prompt-tokens", "9", *SIZES, "--json", str(out)]) == 0
    trajectory, whole = json.loads(out.read_text())["rows"]
    assert trajectory["points"][0]["length"] == 9
    assert whole["tokens"] == 3 * (40 - 9)
    assert whole["integrated_seconds"] == trajectory["seconds"]
    for name in ("dense", "sparse"):
        assert whole["over_integrated"][name] == pytest.approx(whole["seconds"][name] / trajectory["seconds"][name])
        assert 0 < whole["prefill_seconds"][name] < whole["seconds"][name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "nothing to measure; give --steady, --trajectory or --end-to-end"),
        ("--steady --schedule qwen3-2b-0.86", "policy.preset='qwen3-2b-0.86' is unknown"),
        ("--steady", "policy.preset='tiny-0.86' is unknown"),
        ("--trajectory --points 15 --schedule {schedule}", "points=15 must be at least 16"),
        ("--end-to-end --prompt-tokens 70 --schedule {schedule}", "points=16 must be at least 16 and at most the 10"),
        ("--steady --length 999 --schedule {schedule}", "length=999 is outside tiny's context"),
    ],
)
def test_bad_input(
    tiny_source: str, schedule: str, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    length = [] if "--length" in arguments else ["--length", "80"]
    given = arguments.format(schedule=schedule).split()
    assert main(["bench", "rollout", "--model", tiny_source, "--batch", "2", *length, *given, *SIZES]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
