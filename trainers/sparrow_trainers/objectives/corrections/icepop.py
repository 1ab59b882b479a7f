"""IcePop (Ling Team, "Every Step Evolves", arXiv 2510.18855): weight rho within a band, 0 outside."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Correction, Reduce, ResponseBatch, TokenWeights
from sparrow_trainers.objectives.corrections.levels import banded, check_band, ratio_at, reweighted


class IcepopConfig(PluginConfig):
    type: str = "icepop"
    low: float = Field(0.5, gt=0, allow_inf_nan=False, description="least ratio that is kept")
    high: float = Field(5.0, gt=0, allow_inf_nan=False, description="largest ratio that is kept")

    @model_validator(mode="after")
    def _band_is_not_empty(self) -> IcepopConfig:
        check_band(self.type, self.low, self.high)
        return self


class Icepop(Correction):
    """Multiplies a token's weight by ``rho = exp(old - rollout)`` and rejects it unless ``low <= rho <= high``."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = IcepopConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, IcepopConfig)
        self._low, self._high = config.low, config.high

    def apply(self, batch: ResponseBatch, current: TokenWeights, reduce: Reduce) -> TokenWeights:
        return banded(reweighted(current, ratio_at(batch, "token")), batch, "token", self._low, self._high)
