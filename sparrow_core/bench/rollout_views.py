"""The views of ``sparrow bench rollout``, case by case."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparrow_core.bench.decode import free_memory
from sparrow_core.bench.end_to_end import EndToEndRow, end_to_end
from sparrow_core.bench.rollout import RolloutCase, RolloutRow, steady, trajectory
from sparrow_core.bench.setup import BenchSetup
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel


@dataclass(frozen=True, slots=True)
class Views:
    """What to measure. Raises InputError when it is nothing."""

    steady: bool
    trajectory: bool
    end_to_end: bool
    """Measures the trajectory too, from the prompt's length on."""
    points: int
    prompt_tokens: int

    def __post_init__(self) -> None:
        if not (self.steady or self.trajectory or self.end_to_end):
            raise InputError("nothing to measure; give --steady, --trajectory or --end-to-end, or several of them")

    @property
    def count(self) -> int:
        """Rows per case."""
        return self.steady + (self.trajectory or self.end_to_end) + self.end_to_end


def bench_rollout(cases: Sequence[RolloutCase], views: Views, setup: BenchSetup) -> Iterator[RolloutRow | EndToEndRow]:
    """Rows as they are measured. Every schedule is looked up before the first model is loaded.

    Raises InputError as ``steady``, ``trajectory`` and ``end_to_end`` do.
    """
    for case in cases:
        case.policy(setup.config.attention.layout)
    for source, group in itertools.groupby(cases, key=lambda case: case.model):
        model = setup.load(source)
        for case in group:
            yield from _views_of(case, views, model, setup)
        del model
        free_memory(setup.device)


def _views_of(
    case: RolloutCase, views: Views, model: LanguageModel, setup: BenchSetup
) -> Iterator[RolloutRow | EndToEndRow]:
    attention, rollout = setup.config.attention, setup.config.rollout
    bandwidth, timing = setup.bandwidth, setup.timing
    if views.steady:
        yield steady(case, model, attention, rollout, bandwidth=bandwidth, timing=timing)
        free_memory(setup.device)
    if views.trajectory or views.end_to_end:
        first = views.prompt_tokens if views.end_to_end else 1
        steps = trajectory(
            case, model, attention, rollout, bandwidth=bandwidth, timing=timing, num_points=views.points, first=first
        )
        yield steps
        free_memory(setup.device)
        if views.end_to_end:
            yield end_to_end(steps, model, attention, rollout, prompt_tokens=views.prompt_tokens)
