"""Log-prob weighted by the clipped ratio as a constant ("CISPO", MiniMax-M1, arXiv 2506.13585).

Every token keeps a gradient; clipping only bounds its size.

Shapes: T tokens.
"""

from __future__ import annotations

from typing import ClassVar

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import PolicyLoss, PolicyTokens, TokenLoss
from sparrow_trainers.objectives.clip_range import ClipRangeConfig
from sparrow_trainers.objectives.ratios import bounded_exp


class CispoConfig(ClipRangeConfig):
    """Without bounds given, the ratio is at most 5 and has no lower bound."""

    default_low: ClassVar[float | None] = None
    default_high: ClassVar[float | None] = 4.0

    type: str = "cispo"


class Cispo(PolicyLoss):
    """``-clip(r) A new`` with ``r = exp(new - old)``, where no gradient passes through ``clip(r)``."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = CispoConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, CispoConfig)
        self._low, self._high = config.low, config.high

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        ratio_T = bounded_exp(tokens.new_logp_T.detach() - tokens.old_logp_T)
        weight_T = ratio_T.clamp(self._low, self._high)
        stats = {
            "ratio": ratio_T,
            "clipped_low": (ratio_T < self._low).float(),
            "clipped_high": (ratio_T > self._high).float(),
        }
        return TokenLoss(-weight_T * tokens.advantage_T * tokens.new_logp_T, stats)
