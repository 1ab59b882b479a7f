"""Configuration of a calibration."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field, SerializeAsAny, field_validator

from sparrow_core.config import PluginOf, RunConfig, Section, SelectorPlugin
from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError

CostPlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf("sparrow.cost_models")]


class CalibrateSection(Section):
    mode: Literal["teacher_forced", "on_policy"] = Field(
        "teacher_forced",
        description="teacher_forced scores one dense text under every budget; on_policy lets each budget generate",
    )
    budgets: tuple[int, ...] | None = Field(None, description="page budgets to measure; null takes num_budgets of them")
    num_budgets: int = Field(18, ge=2, description="budgets in logarithmic steps up to half the longest context")
    selectors: tuple[SelectorPlugin, ...] = Field(
        cast(Any, ("mean_landmark",)),
        min_length=1,
        description="selectors to measure",
    )
    text_prefix: int | None = Field(
        None,
        ge=1,
        description="teacher_forced on the prompts' own text after this many tokens, instead of a dense rollout",
    )
    min_tokens: int = Field(200, ge=20, description="fewest tokens from which a bin's tail is stated")
    resamples: int = Field(1000, ge=100, description="bootstrap resamples, over prompts")
    bound: Literal["tail", "interval"] = Field(
        "tail", description="what must meet tau: the measured tail, or the lower end of its interval"
    )
    cost_batch: int = Field(32, ge=1, description="sequences per decode step that the cost model assumes")

    @field_validator("budgets")
    @classmethod
    def _budgets_are_distinct(cls, budgets: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if budgets is not None and (len(set(budgets)) != len(budgets) or not budgets):
            raise InputError("must name at least one budget, each once")
        return None if budgets is None else tuple(sorted(budgets))


class CalibrateConfig(RunConfig):
    """A measurement's configuration and the grid to calibrate over. ``policy`` is not used: the grid sets budgets."""

    calibrate: CalibrateSection = Field(default_factory=CalibrateSection)
    cost: CostPlugin | None = Field(None, description="cost model that ranks configurations; null counts pages")
