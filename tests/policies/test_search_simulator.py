"""The synthetic mismatch model has the tail that it says, and the published budgets' shape."""

from __future__ import annotations

import numpy as np
import pytest

from sparrow_core.schedule import BudgetSchedule
from sparrow_core.testing.simulator import SyntheticMismatch, simulate

MODEL = SyntheticMismatch()


@pytest.mark.parametrize("pages", [32, 96, 200, 2000], ids=lambda p: f"{p}-pages")
@pytest.mark.parametrize("index", [0, 3])
def test_sampled_tail_is_the_exact_one(index, pages):
    counts = [0] * 4
    counts[index] = 60_000
    stream = simulate(MODEL, BudgetSchedule((pages,) * 4), tokens_per_bin=counts, seed=index)
    low, high = stream.sketch(index).tail_confidence(0.05, 0.999)
    assert min(low, 0.999) <= MODEL.bin_tail(index, pages) <= high
    assert stream.total == 60_000


def test_tail_rises_with_pages_and_falls_with_length():
    by_pages = [MODEL.bin_tail(4, p) for p in (16, 32, 64, 128, 256)]
    by_length = [MODEL.bin_tail(b, 64) for b in range(5)]
    assert by_pages == sorted(by_pages)
    assert by_length == sorted(by_length, reverse=True)


def test_required_pages_are_the_smallest_that_suffice_and_near_the_published_ones():
    """Published pages of Qwen3-1.7B at 18K to 20K by tau, sink and recent pages counted."""
    for tau, published in {0.75: 96, 0.80: 160, 0.86: 256, 0.90: 384, 0.94: 768}.items():
        required = MODEL.required_pages(9, tau)
        assert MODEL.bin_tail(9, required) >= tau > MODEL.bin_tail(9, required - 1)
        assert required == pytest.approx(published, rel=0.16)


def test_dense_budgets_differ_from_dense_by_less_than_a_thousandth():
    stream = simulate(MODEL, BudgetSchedule((2**31 - 1,)), seed=0)
    assert stream.bin(0).fraction_above_0999 == 1
    assert stream.bin(0).kept_fraction == 1


def test_same_seed_same_stream():
    schedule = BudgetSchedule((32, 64))
    assert simulate(MODEL, schedule, seed=[1, 2]) == simulate(MODEL, schedule, seed=[1, 2])
    assert simulate(MODEL, schedule, seed=[1, 2]) != simulate(MODEL, schedule, seed=[1, 3])
    assert np.isfinite(simulate(MODEL, schedule).bin(0).mean)
