"""Tails per bin and their bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.calibrate.tails import CellTokens, bin_tails, bootstrap_interval, lower_quantile


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_lower_quantile_is_the_smallest_value_with_enough_mass_at_or_below_it(values: list[float], q: float) -> None:
    data = np.array(values)
    result = lower_quantile(data, q)
    assert (data <= result).mean() >= q - 1e-12
    below = data[data < result]
    assert below.size == 0 or (data <= below.max()).mean() < q


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(1, 5))
def test_lower_quantile_ignores_duplication(values: list[float], times: int) -> None:
    assert lower_quantile(np.array(values), 0.05) == lower_quantile(np.array(values * times), 0.05)


def cell(prompts: int, tokens: int, seed: int = 0) -> CellTokens:
    rng = np.random.default_rng(seed)
    size = prompts * tokens
    lengths = np.tile(np.arange(1, tokens + 1), prompts)
    return CellTokens(np.repeat(np.arange(prompts), tokens), lengths, rng.beta(8, 1, size), np.minimum(lengths, 16))


def tails(data: CellTokens, **changes: object):
    settings = {
        "bin_tokens": 50,
        "num_bins": 3,
        "quantile": 0.05,
        "min_tokens": 30,
        "confidence": 0.9,
        "resamples": 200,
        "seed": 1,
    }
    return bin_tails(data, **{**settings, **changes})


def test_a_bin_with_too_few_tokens_states_nothing() -> None:
    short, middle, last = tails(cell(4, 104), min_tokens=30)
    assert short.tail is not None
    assert middle.tokens == 200
    assert (last.tokens, last.tail, last.interval, last.mean) == (20, None, None, None)
    assert last.hi is None


def test_intervals_hold_the_tail_are_reproducible_and_shrink_with_prompts() -> None:
    few, many = tails(cell(4, 49))[0], tails(cell(64, 49))[0]
    assert few.interval == tails(cell(4, 49))[0].interval
    assert few.interval[0] <= few.tail <= few.interval[1]
    assert many.interval[1] - many.interval[0] < few.interval[1] - few.interval[0]


def test_the_bootstrap_resamples_prompts_not_tokens() -> None:
    """Two prompts that are each constant: only their mixtures can be drawn, so the interval spans both values."""
    values, prompts = np.repeat([0.2, 0.9], 500), np.repeat([0, 1], 500)
    assert bootstrap_interval(values, prompts, 0.05, 0.9, 400, [0]) == (pytest.approx(0.2), pytest.approx(0.9))


def test_kept_fraction_counts_attended_over_context_tokens() -> None:
    first = tails(cell(2, 49))[0]
    lengths = np.arange(1, 50)
    assert first.kept_fraction == pytest.approx(np.minimum(lengths, 16).sum() / lengths.sum())
