"""Statistics of a batch before its update. All are shares or means, so a batch laid twice has the same.

Shapes: S sequences of this rank, T drawn tokens of them laid end to end.
"""

from __future__ import annotations

import torch

from sparrow_core.train_contracts import Reduce, ResponseBatch, TokenWeights
from sparrow_trainers.objectives.advantages.groups import groups_of
from sparrow_trainers.objectives.metrics import MetricSums
from sparrow_trainers.objectives.ratios import bounded_exp, mismatch_log_ratio, sum_by_sequence

PREFIX = "objective/"


def reward_metrics(sums: MetricSums, batch: ResponseBatch, advantage_S: torch.Tensor) -> None:
    """Rewards (after the stages), advantages, lengths, cut responses and groups without variance."""
    everywhere_S = torch.ones_like(batch.truncated_S)
    values = {
        "reward_mean": batch.reward_S,
        "advantage_mean": advantage_S,
        "advantage_abs_mean": advantage_S.abs(),
        "length_mean": batch.lengths_S,
        "clipped_share": batch.truncated_S,
    }
    for name, values_S in values.items():
        sums.add_tokens(PREFIX + name, values_S, everywhere_S)
    flat_G = groups_of(batch.reward_S, batch.group_S).is_flat_G
    sums.add_tokens(f"{PREFIX}zero_variance_groups", flat_G, torch.ones_like(flat_G))


def rejection_metrics(
    sums: MetricSums, suffix: str, batch: ResponseBatch, before_T: torch.Tensor, after_T: torch.Tensor
) -> None:
    """Share of all tokens that went, and of all sequences (with tokens) that lost the last of theirs."""
    sums.add_tokens(f"{PREFIX}rejected_tokens{suffix}", before_T & ~after_T, torch.ones_like(before_T))
    kept_before_S, kept_after_S = (
        sum_by_sequence(kept_T.double(), batch.sequence_T, batch.num_sequences) for kept_T in (before_T, after_T)
    )
    gone_S = (kept_before_S > 0) & (kept_after_S == 0)
    sums.add_tokens(f"{PREFIX}rejected_sequences{suffix}", gone_S, batch.lengths_S > 0)


def weight_metrics(batch: ResponseBatch, weights: TokenWeights, reduce: Reduce) -> dict[str, float]:
    """The rollout ratio rho over all tokens, and the weights made of it.

    ``rollout_kl_k1`` and ``_k3`` estimate KL(rollout || old) from the rollout's own tokens, ``rollout_chi2`` is
    E[rho^2] - 1, ``ess_*`` the effective sample size (sum w)^2 / (T sum w^2), of rho and of the final weights.
    """
    log_rho_T = mismatch_log_ratio(batch)
    rho_T, weight_T = bounded_exp(log_rho_T), weights.weight_T.double()
    columns = (torch.ones_like(rho_T), -log_rho_T, rho_T - 1 - log_rho_T, rho_T, rho_T**2, weight_T, weight_T**2)
    sums = torch.stack([column_T.sum() for column_T in columns])
    tokens, k1, k3, rho, rho2, weight, weight2 = reduce(sums).tolist()
    if tokens == 0:
        return {}
    metrics = {
        "rollout_kl_k1": k1 / tokens,
        "rollout_kl_k3": k3 / tokens,
        "rollout_ratio_mean": rho / tokens,
        "rollout_chi2": rho2 / tokens - 1,
        "ess_raw": rho**2 / (tokens * rho2),
        "ess_weights": weight**2 / (tokens * weight2) if weight2 > 0 else 0.0,
        "weight_mean": weight / tokens,
    }
    return {PREFIX + name: value for name, value in metrics.items()}
