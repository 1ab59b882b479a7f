"""Masked importance sampling: weight rho of a token or its sequence within a band, 0 outside.

Unlike truncation, a ratio beyond the band teaches nothing instead of something bounded ("When Speed Kills Stability",
Liu, Li et al., 2025).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Correction, Reduce, ResponseBatch, TokenWeights
from sparrow_trainers.objectives.corrections.levels import Level, banded, check_band, ratio_at, reweighted


class MisConfig(PluginConfig):
    type: str = "mis"
    level: Level = Field(
        "token", description="ratio of the token, product over its sequence, or geometric mean over its sequence"
    )
    low: float | None = Field(None, gt=0, allow_inf_nan=False, description="least ratio that is kept; null: no bound")
    high: float = Field(2.0, gt=0, allow_inf_nan=False, description="largest ratio that is kept")
    reweight: bool = Field(True, description="multiply by the ratio; false only rejects, for a weight of another part")

    @model_validator(mode="after")
    def _band_is_not_empty(self) -> MisConfig:
        check_band(self.type, self.low, self.high)
        return self


class Mis(Correction):
    """Multiplies weights by rho at ``level`` and rejects the tokens whose rho is outside ``[low, high]``."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = MisConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, MisConfig)
        self._level, self._low, self._high, self._reweight = config.level, config.low, config.high, config.reweight

    def apply(self, batch: ResponseBatch, current: TokenWeights, reduce: Reduce) -> TokenWeights:
        if self._reweight:
            current = reweighted(current, ratio_at(batch, self._level))
        return banded(current, batch, self._level, self._low, self._high)
