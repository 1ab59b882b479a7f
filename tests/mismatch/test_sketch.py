"""The sketch: exact counts, bounded quantiles, and a state free of order."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_core.mismatch import TAIL_LIMIT, AcceptanceSketch, MismatchError
from sparrow_core.testing.mismatch import acceptances

BOUND = 1 / 4096
FRACTIONS = st.floats(0, 1)


def sketch_of(values: torch.Tensor) -> AcceptanceSketch:
    sketch = AcceptanceSketch()
    sketch.add(values)
    return sketch


def exact_quantile(values: torch.Tensor, q: float) -> float:
    rank = max(1, math.ceil(Fraction(repr(q)) * len(values)))
    return float(values.double().sort().values[rank - 1])


@given(acceptances(min_size=1), FRACTIONS)
def test_quantile_interval_holds_the_exact_quantile(values, q):
    sketch = sketch_of(values)
    low, high = sketch.quantile_interval(q)
    assert low <= exact_quantile(values, q) <= high
    assert high - low <= BOUND
    assert sketch.quantile(q) == low


@given(acceptances(min_size=1), FRACTIONS)
def test_float64_values_are_held_too(values, q):
    values = (values.double() * (1 - 1e-12)).clamp(0, 1)
    low, high = sketch_of(values).quantile_interval(q)
    assert low <= exact_quantile(values, q) <= high


@pytest.mark.parametrize("q", [0.0625, 0.25, 0.5, 0.9375])
@pytest.mark.parametrize(("a", "b"), [(0.3, 0.2), (1.0, 1.0), (30.0, 1.0)], ids=["u-shaped", "uniform", "near-one"])
def test_quantile_agrees_with_numpy(a, b, q):
    values = np.random.default_rng(0).beta(a, b, size=4096).astype(np.float32)
    low, high = sketch_of(torch.from_numpy(values)).quantile_interval(q)
    assert low <= np.quantile(values, q, method="inverted_cdf") <= high


def test_quantile_is_the_smallest_value_that_covers_the_fraction():
    sketch = sketch_of(torch.arange(1, 21) / 32)
    assert sketch.quantile(0.05) == 1 / 32
    assert sketch.quantile(0.051) == 2 / 32
    assert sketch.quantile(0.0) == 1 / 32
    assert sketch.quantile(1.0) == 20 / 32


@given(acceptances(min_size=1), st.lists(FRACTIONS, min_size=2, max_size=5))
def test_quantile_is_monotone(values, fractions):
    quantiles = [sketch_of(values).quantile(q) for q in sorted(fractions)]
    assert quantiles == sorted(quantiles)


@given(acceptances(min_size=1), st.integers(2, 5), FRACTIONS)
def test_duplicating_the_batch_changes_no_statistic(values, copies, q):
    once, many = sketch_of(values), sketch_of(values.repeat(copies))
    assert many.count == copies * once.count
    assert many.quantile_interval(q) == once.quantile_interval(q)
    assert many.mean == once.mean
    assert many.fraction_above_0999 == once.fraction_above_0999


@given(st.lists(acceptances(), max_size=5), st.randoms(use_true_random=False))
def test_state_does_not_depend_on_order_or_grouping(batches, random):
    whole = sketch_of(torch.cat([torch.zeros(0), *batches]))
    parts = [sketch_of(b) for b in batches]
    random.shuffle(parts)
    from_left = sum(parts, AcceptanceSketch())
    from_right = AcceptanceSketch()
    for part in reversed(parts):
        from_right = part + from_right
    assert from_left == from_right == whole
    assert from_left.state_dict() == whole.state_dict()
    if whole.count:
        assert from_left.mean == from_right.mean == whole.mean


@given(acceptances(min_size=1), acceptances(min_size=1))
def test_add_leaves_both_sides_as_they_were(first, second):
    left, right = sketch_of(first), sketch_of(second)
    merged = left + right
    merged.add(torch.tensor([0.5]))
    assert left == sketch_of(first)
    assert right == sketch_of(second)
    assert merged != left


@given(acceptances(min_size=1))
def test_count_mean_share_and_histogram(values):
    sketch = sketch_of(values)
    assert sketch.count == len(values)
    assert sketch.mean == pytest.approx(float(values.double().mean()), abs=2**-32)
    assert sketch.fraction_above_0999 == float((values.double() > TAIL_LIMIT).sum()) / len(values)
    edges, counts = sketch.histogram()
    assert len(edges) == len(counts) + 1
    assert (np.diff(edges) >= 0).all()
    assert (np.diff(edges) <= BOUND).all()
    assert counts.sum() == len(values)
    tail_edges, tail_counts = sketch.tail_counts()
    assert tail_edges[-1] == TAIL_LIMIT
    assert tail_counts.sum() == int((values.double() <= TAIL_LIMIT).sum())


@pytest.mark.parametrize(
    ("value", "share"), [(TAIL_LIMIT, 0.0), (np.nextafter(TAIL_LIMIT, 1), 1.0), (1.0, 1.0), (0.0, 0.0)]
)
def test_share_above_is_strict(value, share):
    assert sketch_of(torch.tensor([value], dtype=torch.float64)).fraction_above_0999 == share


def test_exactly_one_is_told_from_almost_one():
    assert sketch_of(torch.ones(3)).quantile_interval(0.5) == (1.0, 1.0)
    assert sketch_of(torch.tensor([1 - 2**-24])).quantile(0.5) < 1


@given(acceptances())
def test_state_round_trips_through_json(values):
    sketch = sketch_of(values)
    restored = AcceptanceSketch.from_state_dict(json.loads(json.dumps(sketch.state_dict())))
    assert restored == sketch
    assert restored.count == sketch.count


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resolution": 100}, "resolution=100"),
        ({"cells": [1, 1]}, "damaged"),
        ({"cells": [1, 9999]}, "damaged"),
        ({"counts": [1]}, "damaged"),
        ({"counts": [1, -1]}, "damaged"),
    ],
)
def test_damaged_state_is_refused(change, message):
    state = sketch_of(torch.tensor([0.1, 0.9])).state_dict()
    with pytest.raises(InputError, match=message):
        AcceptanceSketch.from_state_dict(state | change)


def test_incomplete_state_is_refused():
    state = AcceptanceSketch().state_dict()
    del state["sum"]
    with pytest.raises(InputError, match="sum"):
        AcceptanceSketch.from_state_dict(state)


@given(acceptances(min_size=1), FRACTIONS)
def test_confidence_interval_holds_the_empirical_quantile_and_widens_with_confidence(values, q):
    sketch = sketch_of(values)
    narrow, wide = sketch.tail_confidence(q, 0.5), sketch.tail_confidence(q, 0.99)
    assert 0 <= wide[0] <= narrow[0] <= narrow[1] <= wide[1] <= 1
    assert wide[0] <= sketch.quantile_interval(q)[1]
    assert wide[1] >= sketch.quantile_interval(q)[0]


def test_confidence_interval_covers_the_true_quantile_often_enough():
    q, rng, hits, runs = 0.05, np.random.default_rng(0), 0, 400
    for _ in range(runs):
        low, high = sketch_of(torch.from_numpy(rng.random(300))).tail_confidence(q, 0.9)
        hits += low <= q <= high
    assert hits / runs >= 0.88
    assert hits / runs <= 0.98  # an interval that always covers says nothing


def test_confidence_interval_narrows_with_more_values():
    rng = np.random.default_rng(1)
    widths = [
        high - low
        for low, high in (sketch_of(torch.from_numpy(rng.random(n))).tail_confidence(0.05) for n in (100, 10_000))
    ]
    assert widths[1] < widths[0] / 4


def test_too_few_values_leave_the_tail_open_below():
    assert sketch_of(torch.full((5,), 0.9)).tail_confidence(0.05)[0] == 0.0
    assert AcceptanceSketch().tail_confidence(0.05) == (0.0, 1.0)


@pytest.mark.parametrize("value", [math.nan, -0.01, 1.01, math.inf])
def test_values_outside_the_range_raise_with_their_token(value):
    with pytest.raises(MismatchError, match="at token 1"):
        AcceptanceSketch().add(torch.tensor([0.5, value]))


def test_overshoot_by_rounding_is_clamped():
    assert sketch_of(torch.tensor([1 + 5e-7, -5e-7])) == sketch_of(torch.tensor([1.0, 0.0]))


def test_an_empty_sketch_has_no_statistics():
    empty = AcceptanceSketch()
    for ask in (lambda: empty.mean, lambda: empty.quantile(0.5), lambda: empty.fraction_above_0999):
        with pytest.raises(MismatchError, match="no values"):
            ask()


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_fractions_outside_the_range_are_refused(q):
    with pytest.raises(InputError, match="q="):
        sketch_of(torch.ones(1)).quantile(q)
