"""Dynamic sampling (DAPO): groups whose rewards are all equal teach nothing, so others are drawn in their place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from sparrow_core.config.base import Section
from sparrow_core.errors import InputError


class DynamicSamplingConfig(Section):
    enabled: bool = Field(False, description="train only on groups whose rewards differ")
    max_rounds: int = Field(4, ge=1, description="rollouts of one step, at most, until there are enough such groups")


class SamplingOutcome(StrEnum):
    ENOUGH = "enough"
    DRAW_MORE = "draw_more"
    EXHAUSTED = "exhausted"
    """``max_rounds`` rollouts gave too few groups: train on those kept, which may be none."""


@dataclass(frozen=True, slots=True)
class SamplingDecision:
    outcome: SamplingOutcome
    kept: tuple[int, ...]
    """Groups to train on, in the order drawn; at most as many as wanted."""
    flat: tuple[int, ...]
    """Groups whose rewards are all equal."""
    surplus: tuple[int, ...]
    """Groups that differ but are more than wanted."""
    missing: int
    """Groups still to be drawn; 0 unless the outcome is DRAW_MORE."""


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """Pure: the same rewards in the same order give the same decision on every rank."""

    config: DynamicSamplingConfig
    wanted: int
    """Groups of one step."""

    def __post_init__(self) -> None:
        if self.wanted < 1:
            raise InputError(f"wanted={self.wanted} groups per step must be at least 1")

    def decide(self, rewards: Mapping[int, Sequence[float]], rounds: int) -> SamplingDecision:
        """Which groups to train on after ``rounds`` rollouts of this step.

        Args:
            rewards: rewards of each group so far, before reward stages, in the order drawn. Without
                ``enabled`` every group is kept.

        Raises InputError when a group is empty, a reward is not finite, or ``rounds`` is below 1.
        """
        _check(rewards, rounds)
        flat = tuple(group for group, values in rewards.items() if min(values) == max(values))
        dropped = frozenset(flat) if self.config.enabled else frozenset()
        fit = [group for group in rewards if group not in dropped]
        kept, surplus = tuple(fit[: self.wanted]), tuple(fit[self.wanted :])
        missing = self.wanted - len(kept)
        if missing == 0:
            return SamplingDecision(SamplingOutcome.ENOUGH, kept, flat, surplus, 0)
        if self.config.enabled and rounds >= self.config.max_rounds:
            return SamplingDecision(SamplingOutcome.EXHAUSTED, kept, flat, surplus, 0)
        return SamplingDecision(SamplingOutcome.DRAW_MORE, kept, flat, surplus, missing)


def _check(rewards: Mapping[int, Sequence[float]], rounds: int) -> None:
    if rounds < 1:
        raise InputError(f"rounds={rounds} must be at least 1: decide after a rollout")
    for group, values in rewards.items():
        if not values:
            raise InputError(f"group {group} has no rewards; give those of all its samples")
        if not all(map(math.isfinite, values)):
            raise InputError(f"group {group} has rewards {list(values)}; every reward must be finite")
