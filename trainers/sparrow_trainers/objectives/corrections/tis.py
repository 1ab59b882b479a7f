"""Truncated importance sampling: the weight ``min(rho, C)``, of a token or of its whole sequence."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Correction, Reduce, ResponseBatch, TokenWeights
from sparrow_trainers.objectives.corrections.levels import ratio_at, reweighted


class TisConfig(PluginConfig):
    type: str = "tis"
    level: Literal["token", "sequence"] = "token"
    cap: float = Field(2.0, gt=0, allow_inf_nan=False, description="C, the largest weight")


class Tis(Correction):
    """Multiplies weights by ``min(rho, C)`` with ``rho = exp(old - rollout)``, or the product over the sequence."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = TisConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, TisConfig)
        self._level, self._cap = config.level, config.cap

    def apply(self, batch: ResponseBatch, current: TokenWeights, reduce: Reduce) -> TokenWeights:
        return reweighted(current, ratio_at(batch, self._level).clamp(max=self._cap))
