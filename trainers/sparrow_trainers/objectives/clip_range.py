"""Bounds of the staleness ratio, given as relative epsilons or as absolute caps."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError


class ClipRangeConfig(PluginConfig):
    """Options of every loss that bounds a ratio. A side takes an epsilon or a cap, never both."""

    default_low: ClassVar[float | None] = 0.2
    default_high: ClassVar[float | None] = 0.28

    clip_low: float | None = Field(None, gt=0, lt=1, description="epsilon: the ratio's lower bound is 1 - clip_low")
    clip_high: float | None = Field(None, gt=0, description="epsilon: the ratio's upper bound is 1 + clip_high")
    ratio_min: float | None = Field(None, ge=0, lt=1, description="the lower bound itself, instead of clip_low")
    ratio_max: float | None = Field(None, gt=1, description="the upper bound itself, instead of clip_high")

    @model_validator(mode="after")
    def _one_rule_per_side(self) -> ClipRangeConfig:
        for epsilon, cap in (("clip_low", "ratio_min"), ("clip_high", "ratio_max")):
            if getattr(self, epsilon) is not None and getattr(self, cap) is not None:
                raise InputError(
                    f"{self.type} has {epsilon}={getattr(self, epsilon)} and {cap}={getattr(self, cap)}; give one: "
                    f"{epsilon} is relative to 1, {cap} is the bound itself"
                )
        return self

    @property
    def low(self) -> float:
        """The ratio's lower bound; 0 where there is none."""
        if self.ratio_min is not None:
            return self.ratio_min
        epsilon = self.default_low if self.clip_low is None else self.clip_low
        return 0.0 if epsilon is None else 1.0 - epsilon

    @property
    def high(self) -> float:
        """The ratio's upper bound; infinite where there is none."""
        if self.ratio_max is not None:
            return self.ratio_max
        epsilon = self.default_high if self.clip_high is None else self.clip_high
        return float("inf") if epsilon is None else 1.0 + epsilon
