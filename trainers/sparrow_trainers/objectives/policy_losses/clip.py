"""PPO's clipped loss per token, with separate bounds ("clip-higher", DAPO) and optional dual clip.

Shapes: T tokens.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import PolicyLoss, PolicyTokens, TokenLoss
from sparrow_trainers.objectives.clip_range import ClipRangeConfig
from sparrow_trainers.objectives.policy_losses.surrogate import clipped_surrogate
from sparrow_trainers.objectives.ratios import bounded_exp


class ClipConfig(ClipRangeConfig):
    """Without bounds given, the ratio is clipped to [0.8, 1.28]."""

    type: str = "clip"
    dual: float | None = Field(None, gt=1, description="least surrogate for A < 0 is dual * A; null sets no limit")


class Clip(PolicyLoss):
    """``-min(r A, clip(r) A)`` with ``r = exp(new - old)``."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = ClipConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, ClipConfig)
        self._low, self._high, self._dual = config.low, config.high, config.dual

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        ratio_T = bounded_exp(tokens.new_logp_T - tokens.old_logp_T)
        return clipped_surrogate(ratio_T, tokens.advantage_T, self._low, self._high, self._dual)
