"""Schedule search against brute force, and its rules for bins without data or without a solution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_core.search import Candidate, isotonic, optimal_schedule, running_max

TAU = 0.86


def candidate(pages, tails, costs=None, selector="mean_landmark", page_size=16):
    return Candidate(selector, page_size, pages, tuple(tails), tuple(costs or [float(pages)] * len(tails)))


def brute_force(candidates, tau, monotone, one_kernel):
    """The least (misses, shortfall, cost) over all assignments; every bin measured by some candidate."""
    num_bins = len(candidates[0].tails)
    best = (math.inf, math.inf, math.inf)
    for picks in itertools.product(candidates, repeat=num_bins):
        if one_kernel and len({c.kernel for c in picks}) > 1:
            continue
        if monotone and any(a.tokens > b.tokens for a, b in itertools.pairwise(picks)):
            continue
        gaps = [max(0.0, tau - (0.0 if c.tails[b] is None else c.tails[b])) for b, c in enumerate(picks)]
        score = (
            sum(gap > 0 for gap in gaps),
            sum(round(gap * 10**9) for gap in gaps),
            sum(c.costs[b] for b, c in enumerate(picks)),
        )
        best = min(best, score)
    return best


def score_of(result):
    gaps = [max(0.0, result.tau - (c.tail or 0.0)) for c in result.choices]
    return (sum(g > 0 for g in gaps), sum(round(g * 10**9) for g in gaps), result.total_cost)


@st.composite
def problems(draw):
    num_bins = draw(st.integers(1, 4))
    tails = st.lists(st.sampled_from([0.5, 0.8, 0.85, 0.86, 0.9, 0.99]), min_size=num_bins, max_size=num_bins)
    costs = st.lists(st.integers(1, 9).map(float), min_size=num_bins, max_size=num_bins)
    one = st.builds(
        lambda p, t, c, k: candidate(p, t, c, *k),
        st.integers(4, 9),
        tails,
        costs,
        st.sampled_from([("mean_landmark", 16), ("quest", 16), ("mean_landmark", 32)]),
    )
    return draw(st.lists(one, min_size=1, max_size=6))


@given(problems(), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_search_equals_brute_force(candidates, monotone, one_kernel):
    result = optimal_schedule(candidates, TAU, monotone=monotone, one_kernel=one_kernel)
    assert score_of(result) == brute_force(candidates, TAU, monotone, one_kernel)
    if monotone:
        tokens = [c.candidate.tokens for c in result.choices]
        assert tokens == sorted(tokens)
    if one_kernel:
        assert len(set(result.kernels)) == 1


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_order_of_candidates_does_not_change_the_cost(candidates, random):
    shuffled = list(candidates)
    random.shuffle(shuffled)
    first, second = optimal_schedule(candidates, TAU), optimal_schedule(shuffled, TAU)
    assert score_of(first) == score_of(second)


def test_a_greedy_choice_per_bin_is_beaten_when_budgets_must_rise():
    """Bin 0's cheapest candidate is the large one; taking it forces the large one where it is dear."""
    small = candidate(8, [0.9, 0.9], [2.0, 1.0])
    large = candidate(16, [0.9, 0.9], [1.0, 9.0])
    result = optimal_schedule([small, large], TAU)
    assert result.pages == (8, 8)
    assert result.total_cost == 3.0
    assert optimal_schedule([small, large], TAU, monotone=False).pages == (16, 8)


def test_one_kernel_serves_the_whole_trajectory_unless_asked_otherwise():
    a = candidate(8, [0.9, 0.9], [1.0, 5.0], "mean_landmark")
    b = candidate(8, [0.9, 0.9], [4.0, 1.0], "quest")
    assert optimal_schedule([a, b], TAU).kernels == (("quest", 16), ("quest", 16))
    assert optimal_schedule([a, b], TAU, one_kernel=False).total_cost == 2.0


def test_an_infeasible_bin_takes_the_highest_tail_and_is_reported():
    result = optimal_schedule([candidate(8, [0.9, 0.7]), candidate(16, [0.95, 0.8])], TAU)
    assert result.pages == (8, 16)
    assert result.infeasible_bins == (1,)


def test_a_dense_candidate_makes_every_bin_feasible():
    dense = candidate(2**31 - 1, [1.0, 1.0], [50.0, 80.0])
    result = optimal_schedule([candidate(8, [0.9, 0.7]), dense], TAU)
    assert result.pages == (8, 2**31 - 1)
    assert result.infeasible_bins == ()


def test_bins_without_data_copy_the_next_longer_one_and_the_rest_the_last():
    rows = [candidate(8, [None, 0.9, None, 0.8, None]), candidate(16, [None, 0.95, None, 0.9, None])]
    result = optimal_schedule(rows, TAU)
    assert result.pages == (8, 8, 16, 16, 16)
    assert result.unmeasured_bins == (0, 2, 4)
    assert result.extrapolated_bins == (4,)
    assert [c.tail for c in result.choices] == [None, 0.9, None, 0.9, None]


def test_a_kernel_that_was_not_measured_in_long_bins_loses_to_one_that_was():
    short = candidate(4, [0.99, None], [0.1, 0.1], "quest")
    full = candidate(8, [0.9, 0.9], [1.0, 1.0])
    assert set(optimal_schedule([short, full], TAU).kernels) == {("mean_landmark", 16)}


@pytest.mark.parametrize(
    ("candidates", "tau", "message"),
    [
        ([], TAU, "no candidate"),
        ([candidate(8, [None, None])], TAU, "no bin has enough tokens"),
        ([candidate(8, [0.9]), candidate(9, [0.9, 0.9])], TAU, "same bins"),
        ([candidate(8, [0.9])], 1.0, r"tau=1\.0"),
        ([candidate(8, [0.9])], float("nan"), "tau=nan"),
    ],
    ids=["none", "no-data", "ragged", "tau-1", "tau-nan"],
)
def test_bad_input_names_what_is_wrong(candidates, tau, message):
    with pytest.raises(InputError, match=message):
        optimal_schedule(candidates, tau)


values_and_weights = st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 10)), min_size=1, max_size=8)


@given(values_and_weights, st.booleans())
def test_isotonic_is_monotone_keeps_the_mean_and_is_idempotent(rows, increasing):
    y, w = np.array(rows).T
    fit = isotonic(y, w, increasing=increasing)
    steps = np.diff(fit)
    assert ((steps if increasing else -steps) >= 0).all()
    assert np.average(fit, weights=w) == pytest.approx(np.average(y, weights=w), abs=1e-9)
    assert isotonic(fit, w, increasing=increasing) == pytest.approx(fit, abs=1e-9)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_isotonic_is_the_least_squares_fit(values):
    """No monotone sequence on a fine grid is closer."""
    fit = isotonic(values)
    error = np.sum((fit - values) ** 2)
    grid = np.linspace(0, 4, 9)
    for other in itertools.combinations_with_replacement(grid, len(values)):
        assert error <= np.sum((np.array(other) - values) ** 2) + 1e-9


def test_isotonic_refuses_gaps():
    with pytest.raises(InputError, match="finite"):
        isotonic([0.9, float("nan")])


def test_running_max_never_lowers_a_budget():
    assert running_max((4, 9, 7, 9, 12)) == (4, 9, 9, 9, 12)
    assert running_max(()) == ()
