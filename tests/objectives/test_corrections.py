"""Corrections against weights computed token by token with Python floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.train_contracts import ResponseBatch, TokenWeights
from tests.objectives.helpers import (
    batch_of,
    fresh_weights,
    make_batch,
    objective,
    on_ranks,
    one_rank,
    part,
    select,
    with_mismatch,
)

Rule = Callable[[float, float, float], tuple[float, bool]]
"""From rho of the token, product and geometric mean over its sequence: weight and whether it is kept."""


def band(low: float, high: float, rho: float, weight: float) -> tuple[float, bool]:
    return (weight, True) if low <= rho <= high else (0.0, False)


CASES: list[tuple[dict[str, Any], Rule]] = [
    ({"type": "tis"}, lambda rho, product, mean: (min(rho, 2.0), True)),
    ({"type": "tis", "level": "sequence", "cap": 1.5}, lambda rho, product, mean: (min(product, 1.5), True)),
    ({"type": "icepop"}, lambda rho, product, mean: band(0.5, 5.0, rho, rho)),
    ({"type": "icepop", "low": 0.8, "high": 1.25}, lambda rho, product, mean: band(0.8, 1.25, rho, rho)),
    ({"type": "mis"}, lambda rho, product, mean: band(0.0, 2.0, rho, rho)),
    ({"type": "mis", "low": 0.7, "high": 1.5}, lambda rho, product, mean: band(0.7, 1.5, rho, rho)),
    ({"type": "mis", "level": "sequence"}, lambda rho, product, mean: band(0.0, 2.0, product, product)),
    (
        {"type": "mis", "level": "sequence", "low": 0.4, "high": 3.0},
        lambda rho, product, mean: band(0.4, 3.0, product, product),
    ),
    (
        {"type": "mis", "level": "geometric", "low": 0.9, "high": 1.2, "reweight": False},
        lambda rho, product, mean: band(0.9, 1.2, mean, 1.0),
    ),
]
EVERY = pytest.mark.parametrize(("config", "rule"), CASES, ids=[str(config) for config, _ in CASES])


def expected(batch: ResponseBatch, rule: Rule) -> list[tuple[float, bool]]:
    log_rho = (batch.old_logp_T.double() - batch.rollout_logp_T.double()).tolist()
    sequences = batch.sequence_T.tolist()
    result = []
    for value, sequence in zip(log_rho, sequences, strict=True):
        own = [each for each, other in zip(log_rho, sequences, strict=True) if other == sequence]
        result.append(rule(math.exp(value), math.prod(map(math.exp, own)), math.exp(sum(own) / len(own))))
    return result


@EVERY
@pytest.mark.parametrize("seed", range(3))
def test_the_formula(config: dict[str, Any], rule: Rule, seed: int) -> None:
    batch = make_batch(seed)
    after = part(config).apply(batch, fresh_weights(batch), one_rank)
    wanted = expected(batch, rule)
    assert after.weight_T.tolist() == pytest.approx([weight for weight, _ in wanted], rel=1e-5)
    assert after.kept_T.tolist() == [kept for _, kept in wanted]
    assert after.weight_T.dtype == torch.float32


@EVERY
def test_it_multiplies_what_was_there_and_never_takes_back_a_rejection(config: dict[str, Any], rule: Rule) -> None:
    batch = make_batch(4)
    before_T = torch.linspace(0.2, 3.0, len(batch.sequence_T))
    kept_T = torch.arange(len(batch.sequence_T)) % 4 != 0
    before = TokenWeights(torch.where(kept_T, before_T, 0.0), kept_T)
    after = part(config).apply(batch, before, one_rank)
    fresh = part(config).apply(batch, fresh_weights(batch), one_rank)
    assert torch.equal(after.kept_T, kept_T & fresh.kept_T)
    assert after.weight_T.tolist() == pytest.approx((before.weight_T * fresh.weight_T).tolist(), rel=1e-6)


@EVERY
def test_without_mismatch_every_weight_is_one(config: dict[str, Any], rule: Rule) -> None:
    batch = batch_of([1, 4, 2])
    after = part(config).apply(batch, fresh_weights(batch), one_rank)
    assert after.weight_T.tolist() == [1.0] * 7
    assert bool(after.kept_T.all())


@pytest.mark.parametrize("config", [*(config for config, _ in CASES), {"type": "veto"}, {"type": "batch_normalise"}])
@given(log_rho=st.lists(st.floats(-100, 100, width=32), min_size=6, max_size=6))
def test_weights_are_finite_and_not_negative_at_any_mismatch(config: dict[str, Any], log_rho: list[float]) -> None:
    batch = with_mismatch(batch_of([1, 3, 2]), log_rho)
    after = part(config).apply(batch, fresh_weights(batch), one_rank)
    assert bool(torch.isfinite(after.weight_T).all())
    assert bool((after.weight_T >= 0).all())
    assert bool((after.weight_T[~after.kept_T] == 0).all())


def test_bounds_of_the_band_belong_to_it() -> None:
    batch = with_mismatch(batch_of([4]), [math.log(0.5) - 1e-3, math.log(0.5) + 1e-6, 0.0, math.log(5) + 1e-3])
    after = part("icepop").apply(batch, fresh_weights(batch), one_rank)
    assert after.kept_T.tolist() == [False, True, True, False]


def test_veto_drops_the_whole_sequence_of_one_impossible_token() -> None:
    least = math.log(1e-4)
    log_rho = [0.0, least - 0.01, 0.0, 0.0, least + 0.01, 100.0, -100.0]
    batch = with_mismatch(batch_of([3, 3, 1]), log_rho)
    after = part("veto").apply(batch, fresh_weights(batch), one_rank)
    assert after.kept_T.tolist() == [False] * 3 + [True] * 3 + [False]
    assert after.weight_T.tolist() == [0.0] * 3 + [1.0] * 3 + [0.0]


def test_rejections_are_counted_under_the_name_of_what_rejected_them() -> None:
    log_rho = [0.0, -12.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0]
    batch = with_mismatch(batch_of([2, 2, 2, 2], reward_S=torch.arange(4.0)), log_rho)
    metrics = objective(corrections=["veto", {"type": "icepop"}]).prepare(batch, one_rank).metrics
    assert metrics["objective/rejected_tokens_veto"] == 2 / 8
    assert metrics["objective/rejected_sequences_veto"] == 1 / 4
    assert metrics["objective/rejected_tokens_icepop"] == 1 / 8
    assert metrics["objective/rejected_sequences_icepop"] == 0
    assert metrics["objective/rejected_tokens"] == 3 / 8
    assert metrics["objective/rejected_sequences"] == 1 / 4


def test_batch_normalise_makes_the_mean_of_kept_weights_one() -> None:
    batch = make_batch(8)
    weights = part({"type": "icepop", "low": 0.7}).apply(batch, fresh_weights(batch), one_rank)
    after = part("batch_normalise").apply(batch, weights, one_rank)
    kept = [w for w, kept in zip(weights.weight_T.tolist(), weights.kept_T.tolist(), strict=True) if kept]
    assert 0 < len(kept) < len(batch.sequence_T)
    wanted = (weights.weight_T.double() * len(kept) / sum(kept)).tolist()
    assert after.weight_T.tolist() == pytest.approx(wanted, rel=1e-6)
    assert float(after.weight_T[after.kept_T].double().mean()) == pytest.approx(1.0, rel=1e-6)
    assert torch.equal(after.kept_T, weights.kept_T)


def test_batch_normalise_takes_the_mean_over_all_ranks() -> None:
    batch = make_batch(9)
    chain = [part("veto"), part("tis"), part("batch_normalise")]

    def weights(own: ResponseBatch, reduce: Any) -> torch.Tensor:
        current = fresh_weights(own)
        for each in chain:
            current = each.apply(own, current, reduce)
        return current.weight_T

    shares = [[0, 1], list(range(2, batch.num_sequences))]
    split = on_ranks(2, lambda rank, reduce: weights(select(batch, shares[rank]), reduce))
    assert torch.cat(split).tolist() == pytest.approx(weights(batch, one_rank).tolist(), rel=1e-6)
    assert float(torch.cat(split).mean()) == pytest.approx(1.0, rel=1e-6)


def test_batch_normalise_leaves_a_batch_without_kept_tokens() -> None:
    batch = with_mismatch(batch_of([2, 1]), [-50.0, 0.0, -50.0])
    vetoed = part("veto").apply(batch, fresh_weights(batch), one_rank)
    assert part("batch_normalise").apply(batch, vetoed, one_rank).weight_T.tolist() == [0.0] * 3
