"""What is computed once per batch, before any update: rewards, advantages, weights and their statistics.

Shapes: S sequences of this rank, T drawn tokens of them laid end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import (
    Advantage,
    Correction,
    Reduce,
    ResponseBatch,
    RewardStage,
    TokenWeights,
)
from sparrow_trainers.objectives.batch_metrics import rejection_metrics, reward_metrics, weight_metrics
from sparrow_trainers.objectives.metrics import MetricSums
from sparrow_trainers.objectives.ratios import require_finite


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A batch with all that does not depend on the weights being trained. Nothing carries a gradient."""

    batch: ResponseBatch
    reward_S: torch.Tensor
    """float32, after the reward stages."""
    advantage_S: torch.Tensor
    """float32."""
    weights: TokenWeights
    counted_T: torch.Tensor
    """bool: tokens of the denominator and, the rejected with weight 0, of the numerator."""
    metrics: dict[str, float]
    """Over all ranks."""


def check_batch(batch: ResponseBatch) -> None:
    """Raises InputError when shapes disagree, sequences are out of order, or a number is not finite."""
    tokens, sequences = batch.sequence_T.shape, batch.reward_S.shape
    for name, expected in (("rollout_logp_T", tokens), ("old_logp_T", tokens), ("group_S", sequences)):
        shape = getattr(batch, name).shape
        if len(shape) != 1 or shape != expected:
            raise InputError(f"batch.{name} has shape {list(shape)}; it must be {list(expected)}")
    if batch.truncated_S.shape != sequences:
        raise InputError(f"batch.truncated_S has shape {list(batch.truncated_S.shape)}; it must be {list(sequences)}")
    sequence_T = batch.sequence_T
    if len(sequence_T) and (
        bool((sequence_T.diff() < 0).any()) or int(sequence_T[0]) < 0 or int(sequence_T[-1]) >= batch.num_sequences
    ):
        raise InputError(f"batch.sequence_T must ascend from 0 to at most {batch.num_sequences - 1}, the last sequence")
    require_finite("batch.rollout_logp_T", batch.rollout_logp_T, sequence_T)
    require_finite("batch.old_logp_T", batch.old_logp_T, sequence_T)
    require_finite_sequences("batch.reward_S", batch.reward_S)


def require_finite_sequences(name: str, values_S: torch.Tensor) -> None:
    """Raises InputError naming the first sequence whose number is NaN or infinite."""
    bad = (~torch.isfinite(values_S)).nonzero()
    if len(bad):
        raise InputError(f"{name} is {float(values_S[int(bad[0])])} for sequence {int(bad[0])}; it must be finite")


@torch.no_grad()
def prepare(
    batch: ResponseBatch,
    stages: Sequence[RewardStage],
    advantage: Advantage,
    corrections: Sequence[tuple[str, Correction]],
    *,
    counts_rejected: bool,
    reduce: Reduce,
) -> Prepared:
    """Raises InputError for a batch that ``check_batch`` refuses and for parts that give wrong shapes or NaN."""
    check_batch(batch)
    shaped = batch
    for stage in stages:
        reward_S = stage.shape(shaped).float()
        _check_sequences(stage, "rewards", reward_S, batch.num_sequences)
        shaped = replace(shaped, reward_S=reward_S)
    advantage_S = advantage.advantages(shaped, reduce).float()
    _check_sequences(advantage, "advantages", advantage_S, batch.num_sequences)
    sums = MetricSums()
    weights = TokenWeights(
        torch.ones_like(batch.old_logp_T, dtype=torch.float32), torch.ones_like(batch.sequence_T, dtype=torch.bool)
    )
    for label, correction in corrections:
        before, weights = weights, _applied(correction, batch, weights, reduce)
        rejection_metrics(sums, f"_{label}", batch, before.kept_T, weights.kept_T)
    rejection_metrics(sums, "", batch, torch.ones_like(weights.kept_T), weights.kept_T)
    reward_metrics(sums, shaped, advantage_S)
    counted_T = torch.ones_like(weights.kept_T) if counts_rejected else weights.kept_T
    metrics = sums.reduce(reduce).means() | weight_metrics(batch, weights, reduce)
    return Prepared(batch, shaped.reward_S, advantage_S, weights, counted_T, metrics)


def _check_sequences(part: object, what: str, values_S: torch.Tensor, num_sequences: int) -> None:
    if values_S.shape != (num_sequences,):
        raise InputError(
            f"{type(part).__name__} gave {what} of shape {list(values_S.shape)}; "
            f"give one per sequence, [{num_sequences}]"
        )
    require_finite_sequences(f"{what} of {type(part).__name__}", values_S)


def _applied(correction: Correction, batch: ResponseBatch, before: TokenWeights, reduce: Reduce) -> TokenWeights:
    after = correction.apply(batch, before, reduce)
    name = type(correction).__name__
    for field in ("weight_T", "kept_T"):
        shape = getattr(after, field).shape
        if shape != batch.sequence_T.shape:
            raise InputError(f"{name} gave {field} of shape {list(shape)}; give one per token, {len(batch.sequence_T)}")
    if bool((after.kept_T & ~before.kept_T).any()):
        raise InputError(f"{name} keeps tokens that were rejected before it; return kept_T & current.kept_T")
    weight_T = torch.where(after.kept_T, after.weight_T.detach().float(), 0.0)
    require_finite(f"the weight of {name}", weight_T, batch.sequence_T)
    return TokenWeights(weight_T, after.kept_T)
