"""One bin's controller and the sharing between bins, without streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_policies._controller import BinModel, Rule, next_pages
from sparrow_policies._monotone import share_by_length
from sparrow_policies._tail import TailReading

RULE = Rule(tau=0.86, margin=0.01, confidence=0.95, half_life_tokens=4000, max_raise=4, max_lower=2)
ALLOWED = np.arange(4, 1001, 4)


def reading(tail, width=0.015, tokens=2000):
    return TailReading(tokens, tail, max(tail - width, 0.0), min(tail + width, 1.0))


def seen(*pairs):
    model = BinModel()
    for pages, tail in pairs:
        model = model.updated(reading(tail), pages, RULE)
    return model


def power_law(pages, required=200):
    return 1 - 0.14 * (required / pages) ** 0.7


def test_one_observation_on_the_power_law_finds_the_budget():
    model = seen((100, power_law(100)))
    assert next_pages(model, reading(power_law(100)), 100, ALLOWED, RULE) == pytest.approx(200, rel=0.1)


@pytest.mark.parametrize(("failing", "passing"), [(0.8, 0.885), (0.84, 0.88)], ids=["three-times-steeper", "published"])
def test_two_observations_pin_the_answer_between_them(failing, passing):
    model = seen((200, failing), (260, passing))
    assert len(model.evidence) == 2
    assert 200 < next_pages(model, reading(failing), 200, ALLOWED, RULE) <= 260


def test_inside_the_band_nothing_moves():
    for tail in (0.85, 0.86, 0.87, 0.88):
        assert next_pages(seen((200, tail)), reading(tail), 200, ALLOWED, RULE) == 200


def test_a_confidently_low_reading_raises_even_against_the_pool():
    model = seen(*[(200, 0.868)] * 6, (200, 0.843))
    low, high = model.tail_interval(200, RULE)
    assert low < 0.86 < high
    assert next_pages(model, None, 200, ALLOWED, RULE) == 200
    assert next_pages(model, reading(0.843), 200, ALLOWED, RULE) > 200


def test_moves_are_limited():
    assert next_pages(seen((8, 0.0)), reading(0.0), 8, ALLOWED, RULE) <= 8 * 16
    assert next_pages(seen((960, 0.9999)), None, 960, ALLOWED, RULE) == 240


def test_at_the_largest_budget_it_stays_there():
    assert next_pages(seen((1000, 0.3)), reading(0.3), 1000, ALLOWED, RULE) == 1000


def test_a_contradicting_observation_forgets_the_old_ones():
    model = seen(*[(200, 0.87)] * 5, (200, 0.75))
    assert len(model.evidence) == 1
    assert model.tail_interval(200, RULE)[1] < 0.79


STEEP = {4: 0.2, 5: 0.45, 6: 0.66, 7: 0.72, 8: 0.78, 9: 0.83, 10: 0.87, 11: 0.9, 12: 0.93, 13: 0.97}
CLIFF = {4: 0.2, 5: 0.95, 6: 0.97, 7: 0.985, 8: 0.99}


@pytest.mark.parametrize(("tails", "good"), [(STEEP, {9, 10, 11}), (CLIFF, {5, 6, 7, 8})], ids=["steep", "cliff"])
def test_near_all_pages_a_budget_settles_and_does_not_swing(tails, good):
    """A context of 16 pages: few lose much, all nothing. What failed is not tried again before its evidence fades."""
    rule = Rule(tau=0.86, margin=0.01, confidence=0.95, half_life_tokens=16000, max_raise=4, max_lower=0.5)
    model, pages, tried = BinModel(), 6, []
    for _ in range(30):
        tried.append(pages)
        latest = reading(tails.get(pages, 1.0), 0.02, tokens=1200)
        model = model.updated(latest, pages, rule)
        pages = next_pages(model, latest, pages, np.arange(4, 17), rule)
    assert sum(tails.get(each, 1.0) < 0.8 for each in tried) <= 2
    assert good >= set(tried[-15:])


def test_evidence_fades_by_tokens_and_narrows_the_interval():
    model = seen((200, 0.87), (200, 0.87), (200, 0.87))
    assert [e.weight for e in model.evidence] == pytest.approx([0.5, math.sqrt(0.5), 1.0])
    once, thrice = seen((200, 0.87)).tail_interval(200, RULE), model.tail_interval(200, RULE)
    assert thrice[1] - thrice[0] < once[1] - once[0]


@given(st.floats(4, 900), st.floats(0, 1), st.floats(0, 0.2), st.integers(1, 5000))
def test_any_reading_gives_finite_predictions_and_an_allowed_budget(pages, tail, width, tokens):
    model = BinModel().updated(reading(tail, width, tokens), pages, RULE)
    mean, error = model.predict(np.log2(ALLOWED))
    assert np.isfinite(mean).all()
    assert (error > 0).all()
    assert next_pages(model, reading(tail, width, tokens), 200, ALLOWED, RULE) in ALLOWED


def test_pooled_readings_weigh_tokens_and_narrow():
    pooled = reading(0.9, tokens=3000).pooled(reading(0.8, tokens=1000), 10**6)
    assert pooled.tokens == 4000
    assert pooled.tail == pytest.approx(0.875)
    assert pooled.high - pooled.low < 0.03
    assert reading(0.9, tokens=10**6).pooled(reading(0.8, tokens=1000), 1000).tail == pytest.approx(0.85)
    assert reading(0.9).contradicts(reading(0.8))
    assert not reading(0.9).contradicts(reading(0.88))


bins = st.lists(st.tuples(st.integers(4, 99), st.booleans(), st.integers(0, 20)), min_size=1, max_size=8)


@given(bins)
def test_shared_budgets_rise_within_caps_and_never_cut_a_measured_bin(rows):
    pages, measured, steps = zip(*rows, strict=True)
    caps = np.cumsum(steps) + 99
    shared = share_by_length(pages, measured, caps.tolist())
    assert list(shared) == sorted(shared)
    assert all(count <= cap for count, cap in zip(shared, caps, strict=True))
    assert all(after >= want for after, want, known in zip(shared, pages, measured, strict=True) if known)


@pytest.mark.parametrize(
    ("pages", "measured", "expected"),
    [
        ((400, 50, 60), (False, True, True), (50, 50, 60)),
        ((10, 50, 4), (True, True, False), (10, 50, 50)),
        ((10, 50, 400), (True, True, False), (10, 50, 400)),
        ((90, 50, 60), (True, True, True), (90, 90, 90)),
        ((400, 400), (False, False), (400, 400)),
    ],
    ids=["before", "behind-raised", "behind-kept", "longer-lifted", "no-data"],
)
def test_bins_without_data_take_what_monotonicity_leaves(pages, measured, expected):
    assert share_by_length(pages, measured, (1000,) * len(pages)) == expected
