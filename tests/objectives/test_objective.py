"""Whole objectives: the method's formula, any split into micro-batches, ranks, duplication and extreme ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Reduce, ResponseBatch
from tests.objectives.helpers import (
    Step,
    batch_of,
    make_batch,
    new_logprobs,
    objective,
    on_ranks,
    one_rank,
    select,
    take_step,
    twice,
    with_mismatch,
)

KL = {"type": "kl", "coefficient": 0.05}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "default": {},
    "dapo": {
        "reward_stages": [{"type": "overlong", "cache": 4}],
        "corrections": [{"type": "mis", "level": "geometric", "low": 0.7, "high": 1.4, "reweight": False}, "tis"],
        "rejected_tokens": "left_out",
    },
    "dr_grpo": {"advantage": "dr_grpo", "denominator": "constant", "policy_loss": {"type": "clip", "dual": 3.0}},
    "gspo": {
        "advantage": "rloo",
        "policy_loss": {"type": "gspo", "clip_low": 0.2, "clip_high": 0.2},
        "corrections": ["veto", {"type": "tis", "level": "sequence"}, "batch_normalise"],
        "denominator": "sequence_mean",
    },
    "cispo": {
        "reward_stages": ["dler"],
        "advantage": "batch_std",
        "policy_loss": "cispo",
        "corrections": ["icepop", "batch_normalise"],
        "penalties": [KL, {"type": "kl", "estimator": "k1"}],
    },
    "low_variance": {
        "advantage": {"type": "batch_std", "std_of": "centred"},
        "corrections": [{"type": "mis", "level": "sequence", "high": 5.0}],
        "penalties": [{"type": "kl", "estimator": "low_variance"}, {"type": "kl", "estimator": "k2"}],
        "rejected_tokens": "left_out",
    },
}
EVERY = pytest.mark.parametrize("name", OBJECTIVES)


def reference_of(batch: ResponseBatch) -> torch.Tensor:
    return new_logprobs(batch, seed=50, drift=0.3)


def step_of(
    name: str,
    batch: ResponseBatch,
    new_logp_T: torch.Tensor,
    reference_logp_T: torch.Tensor,
    micro_batches: Sequence[Sequence[int]] | None = None,
    reduce: Reduce = one_rank,
) -> Step:
    trained = objective(**OBJECTIVES[name])
    reference = reference_logp_T if trained.needs_reference else None
    return take_step(trained, batch, new_logp_T, reference_logp_T=reference, micro_batches=micro_batches, reduce=reduce)


@pytest.mark.parametrize("seed", range(3))
def test_the_default_is_the_formula_of_the_method(seed: int) -> None:
    """``-mean_t min(rho, 2) min(r A, clip(r, 0.8, 1.28) A)`` with group-relative A, in Python floats."""
    batch, new_T = make_batch(seed), new_logprobs(make_batch(seed), seed)
    rewards, groups = batch.reward_S.double().tolist(), batch.group_S.tolist()
    total, gradient = 0.0, []
    rows = zip(batch.sequence_T, batch.rollout_logp_T, batch.old_logp_T, new_T, strict=True)
    for sequence, rollout, old, new in ((int(s), float(a), float(b), float(c)) for s, a, b, c in rows):
        group = [r for r, number in zip(rewards, groups, strict=True) if number == groups[sequence]]
        deviation = pstdev(group)
        advantage = (rewards[sequence] - fmean(group)) / (deviation + 1e-6) if deviation > 1e-9 else 0.0
        weight, ratio = min(math.exp(old - rollout), 2.0), math.exp(new - old)
        inside = min(max(ratio, 0.8), 1.28)
        total -= weight * min(ratio * advantage, inside * advantage)
        unclipped = ratio * advantage <= inside * advantage
        gradient.append(-weight * ratio * advantage if unclipped else 0.0)
    count = len(new_T)
    step = take_step(objective(), batch, new_T)
    assert step.loss == pytest.approx(total / count, rel=1e-5, abs=1e-7)
    assert step.gradient_T.tolist() == pytest.approx([each / count for each in gradient], rel=1e-5, abs=1e-7)
    assert step.metrics["objective/policy_loss"] == pytest.approx(total / count, rel=1e-5, abs=1e-7)


@EVERY
@settings(max_examples=15)
@given(data=st.data())
def test_any_split_into_micro_batches_gives_the_same_gradient(name: str, data: st.DataObject) -> None:
    batch = make_batch(1)
    new_T, reference_T = new_logprobs(batch), reference_of(batch)
    order = data.draw(st.permutations(range(batch.num_sequences)))
    cuts = sorted(data.draw(st.sets(st.integers(1, batch.num_sequences - 1))))
    micro_batches = [order[a:b] for a, b in zip([0, *cuts], [*cuts, batch.num_sequences], strict=True)]
    whole, split = step_of(name, batch, new_T, reference_T), step_of(name, batch, new_T, reference_T, micro_batches)
    assert torch.equal(split.gradient_T, whole.gradient_T)
    assert split.loss == pytest.approx(whole.loss, rel=1e-10, abs=1e-12)
    assert split.metrics == pytest.approx(whole.metrics, rel=1e-9, abs=1e-12)


@EVERY
@pytest.mark.parametrize("cut", [3, 7, 9])
def test_two_ranks_together_equal_one(name: str, cut: int) -> None:
    batch = make_batch(2)
    new_T, reference_T = new_logprobs(batch), reference_of(batch)
    shares = [list(range(cut)), list(range(cut, batch.num_sequences))]
    first_T = batch.sequence_T < cut

    def work(rank: int, reduce: Reduce) -> Step:
        at_T = first_T if rank == 0 else ~first_T
        return step_of(name, select(batch, shares[rank]), new_T[at_T], reference_T[at_T], reduce=reduce)

    left, right = on_ranks(2, work)
    one = step_of(name, batch, new_T, reference_T)
    assert left.loss == right.loss == pytest.approx(one.loss, rel=1e-6, abs=1e-9)
    torch.testing.assert_close(torch.cat([left.gradient_T, right.gradient_T]), one.gradient_T, rtol=1e-6, atol=1e-9)
    assert left.metrics == right.metrics == pytest.approx(one.metrics, rel=1e-6, abs=1e-9)


@EVERY
def test_a_batch_laid_twice_has_the_same_loss_and_metrics(name: str) -> None:
    batch = make_batch(3)
    new_T, reference_T = new_logprobs(batch), reference_of(batch)
    once = step_of(name, batch, new_T, reference_T)
    both = step_of(name, twice(batch), torch.cat([new_T, new_T]), torch.cat([reference_T, reference_T]))
    assert both.loss == pytest.approx(once.loss, rel=1e-6, abs=1e-9)
    assert both.metrics == pytest.approx(once.metrics, rel=1e-6, abs=1e-9)
    halves_T = both.gradient_T.reshape(2, -1)
    torch.testing.assert_close(halves_T.sum(0), once.gradient_T, rtol=1e-5, atol=1e-8)


@EVERY
@pytest.mark.parametrize("mismatch", [-100.0, 100.0])
@pytest.mark.parametrize("staleness", [-100.0, 100.0])
def test_extreme_ratios_stay_finite(name: str, mismatch: float, staleness: float) -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0])
    batch = batch_of([3, 2, 2, 1], group_S=torch.tensor([0, 0, 1, 1]), reward_S=rewards, max_tokens=9)
    log_rho_T = torch.tensor([0.0, mismatch, 0.1, 0.0, 0.0, mismatch, mismatch, 0.0])
    batch = with_mismatch(batch, log_rho_T)
    new_T = batch.old_logp_T + torch.tensor([staleness, 0.0, 0.1, staleness, 0.0, 0.0, 0.0, 0.0])
    step = step_of(name, batch, new_T, new_T - staleness)
    assert math.isfinite(step.loss)
    assert bool(torch.isfinite(step.gradient_T).all())
    assert all(map(math.isfinite, step.metrics.values()))


@EVERY
def test_rejected_tokens_have_no_gradient_of_the_policy_loss_or_a_penalty(name: str) -> None:
    batch = make_batch(4, mismatch=1.0)
    step = step_of(name, batch, new_logprobs(batch), reference_of(batch))
    assert step.gradient_T[~step.prepared.weights.kept_T].abs().sum() == 0
    assert step.gradient_T.abs().sum() > 0


def test_a_penalty_of_two_estimators_is_logged_by_each() -> None:
    batch = make_batch(5)
    step = step_of("cispo", batch, new_logprobs(batch), reference_of(batch))
    metrics = step.metrics
    k3, k1 = metrics["objective/reference_kl_k3"], metrics["objective/reference_kl_k1"]
    assert metrics["objective/penalty_kl"] == pytest.approx(0.05 * k3, rel=1e-6)
    assert metrics["objective/penalty_kl_2"] == pytest.approx(0.001 * k1, rel=1e-5)


def bad(batch: ResponseBatch, field: str, at: int, value: float) -> ResponseBatch:
    values = getattr(batch, field).clone()
    values[at] = value
    return replace(batch, **{field: values})


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (bad(batch_of([2, 3]), "old_logp_T", 3, math.nan), r"batch\.old_logp_T is nan at token 1 of sequence 1"),
        (bad(batch_of([2, 3]), "rollout_logp_T", 0, -math.inf), r"batch\.rollout_logp_T is -inf at token 0"),
        (bad(batch_of([2, 3]), "reward_S", 1, math.inf), r"batch\.reward_S is inf for sequence 1; it must be finite"),
        (bad(batch_of([2, 3]), "sequence_T", 4, 0), r"batch\.sequence_T must ascend from 0 to at most 1"),
        (replace(batch_of([2]), reward_S=torch.zeros(1, 1)), r"batch\.group_S has shape \[1\]; it must be \[1, 1\]"),
        (replace(batch_of([2]), old_logp_T=torch.zeros(3)), r"batch\.old_logp_T has shape \[3\]; it must be \[2\]"),
    ],
)
def test_a_broken_batch_is_refused_with_its_position(batch: ResponseBatch, message: str) -> None:
    with pytest.raises(InputError, match=message):
        objective().prepare(batch, one_rank)


def test_wrong_inputs_of_a_loss_are_refused() -> None:
    batch = make_batch(6)
    trained = objective(penalties=[KL])
    prepared = trained.prepare(batch, one_rank)
    everything = torch.arange(batch.num_sequences)
    denominator = trained.denominator(prepared, everything, one_rank)
    new_T = batch.old_logp_T
    with pytest.raises(InputError, match="needs reference_logp_T; run a reference policy, or drop it"):
        trained.loss(prepared, everything, new_T, denominator)
    with pytest.raises(InputError, match=r"new_logp_T has shape .*one number per drawn token"):
        trained.loss(prepared, everything, new_T[:-1], denominator, reference_logp_T=new_T)
    with pytest.raises(InputError, match=r"new_logp_T is nan at token 0 of sequence 0"):
        trained.loss(prepared, everything, torch.full_like(new_T, math.nan), denominator, reference_logp_T=new_T)
    with pytest.raises(InputError, match=r"sequences must be 0 to 11, not \[12\]"):
        trained.loss(prepared, torch.tensor([12]), new_T, denominator, reference_logp_T=new_T)
