from __future__ import annotations

import pytest
import torch

from sparrow_core.bench.steps import DENSE, SPARSE, WITHOUT, StepBench, Timing
from sparrow_core.config import load_config
from sparrow_core.engine.device_step import DeviceStep, StepKey
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule

SCHEDULE = BudgetSchedule((5, 7, 9), bin_tokens=40, page_size=4)
LENGTHS = [39, 40, 90, 120]


@pytest.fixture
def bench(tiny: LanguageModel) -> StepBench:
    config = load_config(None, ["attention.page_size=4"])
    names = (DENSE, SPARSE, WITHOUT)
    return StepBench(tiny, config.attention, config.rollout, capacities=LENGTHS, schedule=SCHEDULE, names=names)


def test_lengths_are_the_same_at_every_timed_step(bench: StepBench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    run = DeviceStep.run

    def watched(step: DeviceStep, key: StepKey) -> None:
        seen.append(step.state.lengths_B.tolist())
        run(step, key)
        assert step.state.lengths_B.tolist() == [length + 1 for length in LENGTHS], "the engine's step goes on"

    monkeypatch.setattr(DeviceStep, "run", watched)
    bench.time(LENGTHS, Timing(rounds=2, repeats=3))
    assert seen == [LENGTHS] * (3 * (2 + 2 * 3))


def test_each_rows_budget_follows_its_own_length(bench: StepBench) -> None:
    bench.reset()
    bench.call(SPARSE)()
    assert bench.attended_pages(SPARSE) == [5, 7, 9, 9]


def test_shorter_lengths_can_be_timed_over_the_same_pages(bench: StepBench) -> None:
    seconds = bench.time([1, 9, 17, 30], Timing(rounds=2, repeats=1))
    assert {name: len(rounds) for name, rounds in seconds.items()} == {DENSE: 2, SPARSE: 2, WITHOUT: 2}
    assert bench.attended_pages(SPARSE) == [1, 3, 5, 5]


def test_a_step_without_attention_neither_reads_nor_writes_the_cache(bench: StepBench) -> None:
    cache = bench.session.cache
    before = cache.k.clone()
    cache.v.fill_(torch.nan)
    bench.reset()
    bench.call(WITHOUT)()
    assert torch.equal(cache.k, before)
    ring = bench.steps[WITHOUT].ring
    assert bool(ring.outcome_R3B[0, 2].all()), "logits are finite though every value is NaN"
    bench.reset()
    bench.call(DENSE)()
    assert not torch.equal(cache.k, before)


def test_a_length_beyond_the_context_is_refused(tiny: LanguageModel) -> None:
    config = load_config(None, ["attention.page_size=4"])
    with pytest.raises(InputError, match="length=161 is outside random's context; give 1 to 160"):
        StepBench(tiny, config.attention, config.rollout, capacities=[161], schedule=SCHEDULE)
