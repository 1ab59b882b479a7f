"""The format of metrics.jsonl: strict JSON that gives back what was written, and refuses what is damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.train_log import INFO, StepRecord, bin_records, read_info, read_records, write_info
from tests.run_log import records


def _strict(line: str) -> dict[str, object]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    result: dict[str, object] = json.loads(line, parse_constant=refuse)
    return result


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@given(st.dictionaries(st.text(min_size=1), st.floats() | st.integers(-(2**53), 2**53)), st.integers(0, 2**40))
def test_a_line_is_strict_json_and_gives_back_every_metric(
    tmp_path_factory: pytest.TempPathFactory, metrics: dict[str, float], step: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    line = StepRecord(step, 3, metrics).line()
    _strict(line)
    assert "\n" not in line
    path.write_text(line + "\n", encoding="utf-8")
    (back,) = read_records(path)
    assert (back.step, back.policy_version) == (step, 3)
    assert back.metrics.keys() == metrics.keys()
    assert all(_same(back.metrics[name], value) for name, value in metrics.items())


def test_what_is_not_finite_is_null_and_named() -> None:
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.5}
    document = _strict(StepRecord(0, 0, values).line())
    assert document["metrics"] == {"a": None, "b": None, "c": None, "d": 1.5}
    assert document["non_finite"] == {"a": "nan", "b": "inf", "c": "-inf"}
    assert "non_finite" not in _strict(StepRecord(0, 0, {"d": 1.5}).line())


@pytest.mark.parametrize("value", [torch.tensor(1.0), "1", None, True], ids=str)
def test_a_metric_that_is_no_number_is_named(value: object) -> None:
    with pytest.raises(InputError, match=r"metric 'loss' of step 4"):
        StepRecord(4, 0, {"loss": value})  # type: ignore[dict-item]


def test_bins_hold_the_stream_and_the_budgets(tmp_path: Path) -> None:
    stream = records.stream()
    bins = bin_records(stream, records.SCHEDULE)
    assert [each.budget_pages for each in bins] == [8, 16, "dense"]
    assert [each.tokens for each in bins] == [400, 400, 0]
    assert [each.tail_lower for each in bins] == [stream.tail(0), stream.tail(1), None]
    assert bins[1].kept_fraction == pytest.approx(128 * 400 / sum(range(500, 900)))
    assert bins[2].hi is None
    (tmp_path / "m").write_text(records.record(0).line() + "\n")
    assert read_records(tmp_path / "m")[0] == records.record(0)


def test_budgets_of_wider_and_of_no_schedules() -> None:
    wide = bin_records(records.stream(), BudgetSchedule((8, 9), bin_tokens=1000))
    assert [each.budget_pages for each in wide] == [8, 8, 9]
    assert [each.budget_pages for each in bin_records(records.stream(), None)] == [None] * 3


def test_a_line_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = records.record(0).line() + "\n"
    for end in ("", "{", records.record(1).line()):
        path.write_text(whole + end)
        assert [r.step for r in read_records(path)] == [0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("{", "line 2 of .*damaged", id="half"),
        pytest.param('{"step": 1, "policy_version": 0}', "line 2 of .*'metrics'", id="no metrics"),
        pytest.param('{"step": 1, "policy_version": 0, "metrics": {"a": NaN}}', "NaN is no JSON", id="NaN"),
        pytest.param('{"step": 1, "policy_version": 0, "metrics": {"a": null}}', "metrics.a", id="null"),
        pytest.param('{"step": 0, "policy_version": 0, "metrics": {}}', "step 0 after step 0", id="twice"),
        pytest.param("[]", "damaged", id="list"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{records.record(0).line()}\n{line}\n")
    with pytest.raises(InputError, match=message):
        read_records(path)


def test_what_stays_the_same_is_written_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=INFO):
        read_info(tmp_path)
    write_info(tmp_path, records.INFO)
    assert read_info(tmp_path) == records.INFO
    (tmp_path / INFO).write_text("{}")
    with pytest.raises(InputError, match="model"):
        read_info(tmp_path)
