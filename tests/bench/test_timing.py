from __future__ import annotations

import pytest
import torch

from sparrow_core.bench.timing import captured, medians, time_rounds
from sparrow_core.errors import InputError

CPU = torch.device("cpu")


def test_competitors_take_turns_and_are_reset_before_every_call() -> None:
    log: list[str] = []
    calls = {name: (lambda name=name: log.append(name)) for name in "ab"}
    seconds = time_rounds(calls, CPU, rounds=2, repeats=2, reset=lambda: log.append("-"))
    warm_up, measured = "-a-a-b-b", "-a-a-b-b" * 2
    assert "".join(log) == warm_up + measured
    assert {name: len(rounds) for name, rounds in seconds.items()} == {"a": 2, "b": 2}
    assert all(s >= 0 for rounds in seconds.values() for s in rounds)


@pytest.mark.parametrize(("rounds", "repeats", "message"), [(0, 1, "rounds=0"), (1, 0, "repeats=0")])
def test_counts_below_one_are_refused(rounds: int, repeats: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        time_rounds({"a": int}, CPU, rounds=rounds, repeats=repeats)


def test_captured_runs_every_call_in_order() -> None:
    log: list[int] = []
    captured([lambda i=i: log.append(i) for i in range(3)], CPU)()
    assert log == [0, 1, 2]


def test_medians() -> None:
    assert medians({"a": [3.0, 1.0, 2.0]}) == {"a": 2.0}
