"""Configuration of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny, field_validator

from sparrow_core.config import PluginOf, PolicyPlugin, Section
from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.mismatch.stream import Kind

CostPlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf("sparrow.cost_models")]


class ReplayConfig(Section):
    """What to replay. Keys that are null take what the traces were recorded with."""

    policies: tuple[PolicyPlugin, ...] = Field(description="policies to compare")
    taus: tuple[float, ...] | None = Field(None, description="run each policy that has a tau once for each of these")
    selector: str | None = Field(None, description="whose traces to take, where there are several selectors'")
    acceptance: Kind | None = Field(None, description="bound of the acceptance that the tail is taken of")
    tau: float | None = Field(None, gt=0, lt=1, description="threshold of policies that have none of their own")
    bin_tokens: int | None = Field(None, ge=1, description="context tokens per length bin")
    num_bins: int | None = Field(None, ge=1, description="the last bin is open-ended")
    quantile: float | None = Field(None, gt=0, lt=1, description="the tail: this quantile of the acceptance in a bin")
    observations: int = Field(8, ge=1, description="rollouts that each policy observes")
    tokens_per_bin: int | None = Field(
        None, ge=1, description="tokens drawn per bin and observation, with replacement; null takes all, every time"
    )
    seed: int = Field(0, ge=0, description="of the draws, which are the same for every policy")
    cost: CostPlugin | None = Field(None, description="cost model; null counts pages per token")
    cost_batch: int = Field(32, ge=1, description="sequences per decode step that the cost model assumes")
    output: str = Field("runs/replay", min_length=1, description="directory of the results")

    @field_validator("policies", mode="before")
    @classmethod
    def _one_policy_is_a_list_of_one(cls, policies: Any) -> Any:
        return [policies] if isinstance(policies, str | Mapping) else policies

    @field_validator("policies")
    @classmethod
    def _some_policy(cls, policies: tuple[PluginConfig, ...]) -> tuple[PluginConfig, ...]:
        if not policies:
            raise InputError("must name at least one policy")
        return policies

    @field_validator("taus")
    @classmethod
    def _taus_are_tails(cls, taus: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if taus is not None and (not taus or len(set(taus)) != len(taus) or not all(0 < tau < 1 for tau in taus)):
            raise InputError("must name at least one threshold between 0 and 1, each once")
        return taus
