"""Which rewards score a completion, and the processes and limits they run under."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny, model_validator

from sparrow_core.config.base import PluginOf, Section
from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError

RewardPlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf("sparrow.rewards")]


class RewardTerm(Section):
    """One summand of the reward. A bare plugin name stands for ``{reward: name}``."""

    reward: RewardPlugin
    weight: float = Field(1.0, description="factor of this reward in the sum")
    name: str | None = Field(None, min_length=1, description="in logs; null takes the plugin's type")

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"reward": value} if isinstance(value, str) else value

    @property
    def label(self) -> str:
        return self.name or self.reward.type


class RewardsConfig(Section):
    """A completion's reward is the weighted sum over ``terms``."""

    terms: tuple[RewardTerm, ...] = Field(min_length=1, description="the rewards that are summed")
    workers: int = Field(2, ge=1, description="worker processes")
    time_limit_s: float = Field(10.0, gt=0, description="for one reward of one completion, then its worker is replaced")
    start_limit_s: float = Field(120.0, gt=0, description="for the workers to import and build their rewards")
    memory_mb: int | None = Field(4096, ge=256, description="private memory of each worker; null sets no limit")
    value_on_error: float = Field(0.0, description="in place of a reward that fails, before its weight")

    @model_validator(mode="after")
    def _limits_of_terms_fit(self) -> RewardsConfig:
        for index, term in enumerate(self.terms):
            needed = getattr(term.reward, "total_limit_s", 0.0)
            if needed >= self.time_limit_s:
                raise InputError(
                    f"rewards.terms[{index}].reward.total_limit_s={needed:g} must be below "
                    f"rewards.time_limit_s={self.time_limit_s:g}, or slow answers count as failed rewards"
                )
        return self

    @model_validator(mode="after")
    def _labels_are_distinct(self) -> RewardsConfig:
        twice = [label for label, count in Counter(term.label for term in self.terms).items() if count > 1]
        if twice:
            raise InputError(f"rewards.terms has {twice[0]!r} more than once; give each a name of its own (name=...)")
        return self
