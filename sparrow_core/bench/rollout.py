"""``sparrow bench rollout``: what a schedule gains over whole rollouts, from step times.

Two views. *Steady*: one step of a full batch whose lengths spread evenly over 1 to L, as continuous batching keeps it.
*Trajectory*: every row grows together from a first length to L; the step's time is measured at some lengths and
integrated between them (trapezoids).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparrow_core import registry
from sparrow_core.bench.floors import FloorModel
from sparrow_core.bench.pages import spread_lengths
from sparrow_core.bench.steps import DENSE, SPARSE, StepBench, Timing
from sparrow_core.bench.timing import medians
from sparrow_core.config import AttentionConfig, RolloutConfig
from sparrow_core.contracts import SparseLayout, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel, model_name
from sparrow_core.schedule import BudgetSchedule

KINDS = (DENSE, SPARSE)
MIN_POINTS = 16


@dataclass(frozen=True, slots=True)
class RolloutCase:
    model: str
    batch: int
    length: int
    schedule: str
    """A schedule file or the name of a published preset."""

    def policy(self, layout: SparseLayout) -> SparsityPolicy:
        """The schedule as a policy. Raises InputError when it is unknown or counts other pages than the layout."""
        policy_class = registry.load("sparrow.policies", "schedule")
        is_file = Path(self.schedule).exists() or self.schedule.endswith(".json")
        settings = {"type": "schedule", "file" if is_file else "preset": self.schedule}
        policy: SparsityPolicy = policy_class(policy_class.Config.model_validate(settings), layout)
        return policy


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """Seconds and floors of a step (steady) or of the whole trajectory, dense and sparse."""

    kind: str
    """``steady`` or ``trajectory``."""
    case: RolloutCase
    tokens: int
    """Tokens that those seconds generate."""
    seconds: dict[str, float]
    floors: dict[str, float]
    points: tuple[Point, ...]

    @property
    def speedup(self) -> float:
        return self.seconds[DENSE] / self.seconds[SPARSE]

    @property
    def floor_speedup(self) -> float:
        return self.floors[DENSE] / self.floors[SPARSE]

    def tokens_per_second(self, name: str) -> float:
        return self.tokens / self.seconds[name]

    def as_json(self) -> dict[str, Any]:
        derived = {
            "tokens_per_second": {name: self.tokens_per_second(name) for name in KINDS},
            "ratio": {name: self.seconds[name] / self.floors[name] for name in KINDS},
            "speedup": self.speedup,
            "floor_speedup": self.floor_speedup,
        }
        return {**asdict(self), **derived}


@dataclass(frozen=True, slots=True)
class Point:
    """One timed step: ``length`` of every row, or of the longest row of a spread batch."""

    length: int
    seconds: dict[str, float]
    floors: dict[str, float]
    bytes: dict[str, int]
    rounds: dict[str, list[float]]


def rollout_cases(
    models: Sequence[str], batches: Sequence[int], lengths: Sequence[int], schedules: Sequence[str]
) -> list[RolloutCase]:
    """The cross product; without schedules each model takes its published one at tau 0.86.

    Raises InputError when an option is missing or no model has such a name.
    """
    options = {"--model": models, "--batch": batches, "--length": lengths}
    missing = [name for name, values in options.items() if not values]
    if missing:
        raise InputError(f"{missing[0]} is missing; give each of {', '.join(options)}")
    return [
        RolloutCase(model, batch, length, schedule)
        for model, batch, length in itertools.product(models, batches, lengths)
        for schedule in schedules or [f"{model_name(model).lower()}-0.86"]
    ]


def steady(
    case: RolloutCase,
    model: LanguageModel,
    attention: AttentionConfig,
    rollout: RolloutConfig,
    *,
    bandwidth: float,
    timing: Timing,
) -> RolloutRow:
    """One step of a full batch of spread lengths."""
    lengths = spread_lengths(case.batch, case.length)
    steps = _Steps(case, model, attention, rollout, lengths, bandwidth)
    point = steps.point(lengths, timing)
    return RolloutRow("steady", case, case.batch, point.seconds, point.floors, (point,))


def trajectory(
    case: RolloutCase,
    model: LanguageModel,
    attention: AttentionConfig,
    rollout: RolloutConfig,
    *,
    bandwidth: float,
    timing: Timing,
    num_points: int = MIN_POINTS,
    first: int = 1,
) -> RolloutRow:
    """Step times at ``num_points`` lengths from ``first`` to L, integrated: the whole batch's rollout.

    Raises InputError when there are too few points or ``first`` is not below L.
    """
    if not MIN_POINTS <= num_points <= case.length - first:
        raise InputError(
            f"points={num_points} must be at least {MIN_POINTS} and at most the {case.length - first} tokens between "
            f"length {first} and length={case.length}"
        )
    steps = _Steps(case, model, attention, rollout, [case.length] * case.batch, bandwidth)
    lengths = [first + (case.length - first) * i // (num_points - 1) for i in range(num_points)]
    points = tuple(steps.point([length] * case.batch, timing) for length in lengths)
    return RolloutRow(
        "trajectory",
        case,
        case.batch * (case.length - first),
        {name: integrated(lengths, [p.seconds[name] for p in points]) for name in KINDS},
        {name: integrated(lengths, [p.floors[name] for p in points]) for name in KINDS},
        points,
    )


def integrated(at: Sequence[int], values: Sequence[float]) -> float:
    """The trapezoid sum of ``values`` over ``at``: seconds per step become seconds of all steps."""
    pieces = zip(itertools.pairwise(at), itertools.pairwise(values), strict=True)
    return sum((right - left) * (a + b) / 2 for (left, right), (a, b) in pieces)


class _Steps:
    """Steps of one case, and their floors."""

    def __init__(
        self,
        case: RolloutCase,
        model: LanguageModel,
        attention: AttentionConfig,
        rollout: RolloutConfig,
        capacities: Sequence[int],
        bandwidth: float,
    ) -> None:
        self.schedule: BudgetSchedule = case.policy(attention.layout).schedule()
        marks = registry.load("sparrow.selectors", attention.selector.type).landmark_vectors
        self.floor, self.bandwidth = FloorModel.of(model, attention.layout, marks), bandwidth
        self.bench = StepBench(model, attention, rollout, capacities=capacities, schedule=self.schedule)

    def point(self, lengths: list[int], timing: Timing) -> Point:
        rounds = self.bench.time(lengths, timing)
        needed = {
            DENSE: self.floor.step(lengths, None).total,
            SPARSE: self.floor.step(lengths, pages_of(self.schedule, lengths)).total,
        }
        floors = {name: count / self.bandwidth for name, count in needed.items()}
        return Point(max(lengths), medians(rounds), floors, needed, rounds)


def pages_of(schedule: BudgetSchedule, lengths: Sequence[int]) -> list[int]:
    """Budget in pages of each length."""
    last = schedule.num_bins - 1
    return [schedule.pages[min(length // schedule.bin_tokens, last)] for length in lengths]
