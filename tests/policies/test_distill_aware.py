"""The ladder: down with an adapter that learns, back when it regresses, never resting below tau."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.testing import PolicyConformance
from sparrow_core.testing.simulator import SyntheticMismatch, simulate
from sparrow_policies.distill_aware import DistillAwareConfig, DistillAwarePolicy

TAU = 0.86
BASE = SyntheticMismatch()
NUM_BINS = 3
LADDER = tuple(tuple(BASE.required_pages(b, tail) for b in range(NUM_BINS)) for tail in (0.88, 0.86, 0.80, 0.75))
"""Rungs named by the tail that the model without an adapter has on them."""


def make(**config):
    config = {"ladder": LADDER, "num_bins": NUM_BINS, **config}
    return DistillAwarePolicy(DistillAwareConfig(**config), SparseLayout())


def adapted(strength):
    """The model with an adapter that scales the pages it needs."""
    return dataclasses.replace(BASE, pages_at_1k=BASE.pages_at_1k * strength)


def worst_tail(model, schedule):
    return min(model.bin_tail(b, pages) for b, pages in enumerate(schedule.pages))


def run(policy, strengths, seed=0, tokens=2000, with_reference=False):
    """Rungs after each observation, and the worst true tail under which each rollout ran."""
    rungs, tails = [], []
    for step, strength in enumerate(strengths):
        model, schedule = adapted(strength), policy.schedule()
        tails.append(worst_tail(model, schedule))
        if with_reference:
            policy.observe_reference(simulate(BASE, schedule, tokens_per_bin=tokens, seed=[seed, 1, step]))
        policy.observe(simulate(model, schedule, tokens_per_bin=tokens, seed=[seed, 2, step]))
        rungs.append(policy.rung)
    return rungs, tails


class TestConformance(PolicyConformance):
    policy = DistillAwarePolicy
    config = DistillAwareConfig(ladder=("qwen3-4b-0.86", "qwen3-4b-0.80", "qwen3-4b-0.75"))


@pytest.mark.parametrize("with_reference", [False, True], ids=["adapter-only", "with-reference"])
def test_goes_down_the_ladder_as_the_adapter_learns_and_stays_above_tau(with_reference):
    strengths = [max(0.35, 1 - 0.04 * step) for step in range(40)]
    rungs, tails = run(make(), strengths, with_reference=with_reference)
    assert rungs[0] == 0
    assert rungs[-1] == 3
    assert rungs == sorted(rungs)
    assert min(tails) >= TAU - 0.01


def test_without_an_adapter_it_does_not_go_past_the_rung_that_meets_tau():
    rungs, tails = run(make(), [1.0] * 40)
    assert max(rungs) <= 1
    assert min(tails) >= TAU - 0.005


def test_a_regress_is_answered_at_once_by_a_rung_that_meets_tau():
    policy = make(start=3)
    run(policy, [0.4] * 4)
    assert policy.rung == 3
    run(policy, [1.0], seed=5)
    assert policy.rung <= 1
    assert worst_tail(BASE, policy.schedule()) >= TAU - 0.005


def test_never_rests_on_a_rung_whose_tail_is_confidently_below_tau():
    for start in range(1, 4):
        policy = make(start=start)
        schedule = policy.schedule()
        stream = simulate(adapted(2.0), schedule, seed=start)
        assert any(stream.sketch(b).tail_confidence(0.05)[1] < TAU for b in range(NUM_BINS))
        policy.observe(stream)
        assert policy.rung < start


def test_a_rung_that_failed_is_tried_again_ever_later():
    """An adapter that flatters itself on rung 1 and fails on rung 2: the waits between tries grow."""
    policy = make(start=1, patience=1)
    tries = []
    for step in range(60):
        strength = 0.4 if policy.rung == 1 else 1.3
        before = policy.rung
        policy.observe(simulate(adapted(strength), policy.schedule(), seed=step))
        if policy.rung == 2 and before == 1:
            tries.append(step)
        if policy.rung == 0:
            policy = _moved(policy, 1)
    waits = [b - a for a, b in itertools.pairwise(tries)]
    assert len(waits) >= 3
    assert waits == sorted(waits)
    assert waits[-1] >= 2 * waits[0]


def _moved(policy, rung):
    state = policy.state_dict()
    other = make(start=1, patience=1)
    other.load_state_dict({**state, "rung": rung})
    return other


def test_the_reference_tells_the_adapters_gain():
    policy = make()
    assert policy.adapter_gain == (None,) * NUM_BINS
    run(policy, [0.5], with_reference=True)
    expected = [adapted(0.5).bin_tail(b, LADDER[0][b]) - BASE.bin_tail(b, LADDER[0][b]) for b in range(NUM_BINS)]
    assert policy.adapter_gain == pytest.approx(expected, abs=0.025)


def test_references_of_both_rungs_replace_the_power_law():
    """A model whose tail hardly depends on pages allows the step that the published slope would not."""
    flat = dataclasses.replace(BASE, pages_exponent=0.05, anchor_tail=0.885)
    policy = make(start=1, patience=1)
    stream = simulate(flat, policy.schedule(), tokens_per_bin=20_000)
    policy.observe(stream)
    assert policy.rung == 1
    policy.observe_reference(stream)
    cheaper = BudgetSchedule(LADDER[2])
    policy.observe_reference(simulate(flat, cheaper, tokens_per_bin=20_000, seed=3), rung=2)
    policy.observe(simulate(flat, policy.schedule(), tokens_per_bin=20_000, seed=4))
    assert policy.rung == 2


def test_a_stale_rollout_moves_nothing():
    policy = make(start=1)
    stale = simulate(adapted(2.0), BudgetSchedule((4,) * NUM_BINS), tokens_per_bin=[0, 2000, 2000])
    policy.observe(stale)
    assert policy.rung == 1


@given(st.lists(st.floats(0.2, 3.0), max_size=8), st.integers(0, 8), st.integers(0, 3), st.sampled_from([0, 150, 900]))
@settings(max_examples=25, deadline=None)
def test_any_history_is_reproducible_and_restorable(strengths, stop, start, tokens):
    policy, twin = make(start=start), make(start=start)
    for step, strength in enumerate(strengths):
        if step == stop:
            restored = make()
            restored.load_state_dict(json.loads(json.dumps(twin.state_dict())))
            twin = restored
        stream = simulate(adapted(strength), policy.schedule(), tokens_per_bin=tokens, seed=step)
        for each in (policy, twin):
            each.observe_reference(stream)
            each.observe(stream)
        assert 0 <= policy.rung < len(LADDER)
        assert policy.schedule() == twin.schedule()
    assert policy.state_dict() == twin.state_dict()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ladder": (LADDER[1], LADDER[0])}, r"ladder\[1\] attends to more pages in bin 0"),
        ({"ladder": (LADDER[1], LADDER[1])}, r"ladder\[1\] is the same schedule"),
        ({"ladder": (LADDER[0], (4, 4))}, r"ladder\[1\] has 2 bins of 2000 tokens, but policy.num_bins=3"),
        ({"ladder": ("qwen3-4b-0.86", "qwen3-4b-0.80")}, "has 20 bins"),
        ({"start": 4}, "start=4 must be a rung of the ladder, 0 to 3"),
    ],
    ids=["order", "same", "bins", "preset-bins", "start"],
)
def test_ladders_that_cannot_be_are_refused(config, message):
    with pytest.raises(InputError, match=message):
        make(**config)


def test_bad_tau_stream_and_state_are_refused():
    with pytest.raises(ValidationError, match="tau"):
        DistillAwareConfig(ladder=LADDER, tau=1.5)
    with pytest.raises(InputError, match="bin_tokens=1000"):
        make().observe(MismatchStream(bin_tokens=1000, num_bins=NUM_BINS))
    with pytest.raises(InputError, match="rung=9"):
        make().observe_reference(MismatchStream(num_bins=NUM_BINS), rung=9)
    with pytest.raises(InputError, match="ladder of 4 rungs"):
        make().load_state_dict(make(ladder=LADDER[:2]).state_dict())
