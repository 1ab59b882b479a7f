"""The parts of an RL objective, chosen by name: ``objective.policy_loss=gspo objective.corrections=[icepop]``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from sparrow_core import registry
from sparrow_core.config.base import PluginOf, Section, plugin_field, section_field
from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import (
    Advantage,
    Correction,
    DenominatorRule,
    ObjectivePart,
    Penalty,
    PolicyLoss,
    RewardStage,
)
from sparrow_trainers.objectives.dynamic_sampling import DynamicSamplingConfig

GROUP = "sparrow.objectives"
ObjectivePlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf(GROUP)]

_DEFAULT_CORRECTIONS: Any = ("tis",)
"""Names; validation makes configurations of them."""


class ObjectiveConfig(Section):
    """Rewards go through the stages, then to the advantage; corrections apply in order; penalties are added."""

    reward_stages: tuple[ObjectivePlugin, ...] = Field((), description="changes of rewards, in order: overlong, ...")
    advantage: ObjectivePlugin = plugin_field("grpo", "how rewards become advantages")
    corrections: tuple[ObjectivePlugin, ...] = Field(
        _DEFAULT_CORRECTIONS,
        description="weights and rejections by the mismatch ratio, in order: tis, icepop, mis, veto, ...",
    )
    policy_loss: ObjectivePlugin = plugin_field("clip", "the surrogate loss per token: clip, gspo, cispo")
    penalties: tuple[ObjectivePlugin, ...] = Field((), description="terms added to the policy loss: kl, ...")
    denominator: ObjectivePlugin = plugin_field("token_mean", "what the summed loss is divided by")
    rejected_tokens: Literal["counted", "left_out"] = Field(
        "counted", description="whether tokens that a correction rejected count in the denominator"
    )
    dynamic_sampling: DynamicSamplingConfig = section_field()

    @model_validator(mode="after")
    def _parts_are_of_their_kind(self) -> ObjectiveConfig:
        for field, kind, config in self._parts():
            part = registry.load(GROUP, config.type)
            if not issubclass(part, kind):
                raise InputError(
                    f"objective.{field}={config.type!r} is a {kind_of(part)}, not a {kind.__name__}; "
                    f"of that kind: {', '.join(names_of(kind)) or 'no part'}"
                )
        return self

    def _parts(self) -> Iterator[tuple[str, type[ObjectivePart], PluginConfig]]:
        yield from (("reward_stages", RewardStage, config) for config in self.reward_stages)
        yield "advantage", Advantage, self.advantage
        yield from (("corrections", Correction, config) for config in self.corrections)
        yield "policy_loss", PolicyLoss, self.policy_loss
        yield from (("penalties", Penalty, config) for config in self.penalties)
        yield "denominator", DenominatorRule, self.denominator

    @property
    def name(self) -> str:
        """The objective for people: ``grpo, tis, clip, token_mean``."""
        return ", ".join(config.type.rpartition(":")[2] for _, _, config in self._parts())


KINDS: tuple[type[ObjectivePart], ...] = (RewardStage, Advantage, Correction, PolicyLoss, Penalty, DenominatorRule)


def kind_of(part: type[ObjectivePart]) -> str:
    return next((kind.__name__ for kind in KINDS if issubclass(part, kind)), "ObjectivePart")


def names_of(kind: type[ObjectivePart]) -> list[str]:
    """Sorted names of the usable parts of a kind."""
    usable = [info.name for info in registry.known(GROUP) if info.error is None]
    return [name for name in usable if issubclass(registry.load(GROUP, name), kind)]
