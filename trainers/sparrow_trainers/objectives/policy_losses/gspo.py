"""Clipped loss of the sequence's ratio, normalised by length ("GSPO", arXiv 2507.18071).

Shapes: S sequences, T tokens.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import PolicyLoss, PolicyTokens, TokenLoss
from sparrow_trainers.objectives.clip_range import ClipRangeConfig
from sparrow_trainers.objectives.policy_losses.surrogate import clipped_surrogate
from sparrow_trainers.objectives.ratios import bounded_exp, sum_by_sequence


class GspoConfig(ClipRangeConfig):
    """Without bounds given, the ratio is clipped to [1 - 3e-4, 1 + 4e-4], as in the paper."""

    default_low: ClassVar[float | None] = 3e-4
    default_high: ClassVar[float | None] = 4e-4

    type: str = "gspo"
    dual: float | None = Field(None, gt=1, description="least surrogate for A < 0 is dual * A; null sets no limit")


class Gspo(PolicyLoss):
    """``-min(s A, clip(s) A)`` at every token, with ``s = exp(mean over the sequence's kept tokens of new - old)``."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = GspoConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, GspoConfig)
        self._low, self._high, self._dual = config.low, config.high, config.dual

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        ratio_T = sequence_ratio(tokens).float()
        return clipped_surrogate(ratio_T, tokens.advantage_T, self._low, self._high, self._dual)


def sequence_ratio(tokens: PolicyTokens) -> torch.Tensor:
    """float64 ``[T]``: the geometric mean of new / old over kept tokens; 1 where the sequence has none."""
    num_sequences = int(tokens.sequence_T[-1]) + 1 if len(tokens.sequence_T) else 0
    log_ratio_T = tokens.new_logp_T.double() - tokens.old_logp_T.double()
    total_S, kept_S = (
        sum_by_sequence(values_T, tokens.sequence_T, num_sequences)
        for values_T in (torch.where(tokens.kept_T, log_ratio_T, 0.0), tokens.kept_T.double())
    )
    return bounded_exp(total_S / kept_S.clamp(min=1))[tokens.sequence_T]
