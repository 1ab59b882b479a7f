"""``sparrow bench decode``: whole decode steps at one length, dense against sparse, beside their floors."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sparrow_core import registry
from sparrow_core.bench.floors import FloorModel
from sparrow_core.bench.steps import DENSE, SPARSE, WITHOUT, StepBench, Timing
from sparrow_core.bench.timing import medians
from sparrow_core.config import AttentionConfig, RolloutConfig
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """Every one of ``batch`` rows has ``length`` tokens; sparse layers attend to ``pages`` of its pages."""

    model: str
    batch: int
    length: int
    pages: int


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """Times in seconds, floors in seconds; ``rounds`` holds the mean of every round."""

    case: DecodeCase
    dense_layers: tuple[int, ...]
    seconds: dict[str, float]
    floors: dict[str, float]
    bytes: dict[str, int]
    rounds: dict[str, list[float]]

    @property
    def speedup(self) -> float:
        """Dense over sparse time."""
        return self.seconds[DENSE] / self.seconds[SPARSE]

    def ratio(self, name: str) -> float:
        return self.seconds[name] / self.floors[name]

    def bandwidth(self, name: str) -> float:
        """Bytes per second of what the floor counts."""
        return self.bytes[name] / self.seconds[name]

    def as_json(self) -> dict[str, Any]:
        derived = {
            "ratio": {name: self.ratio(name) for name in self.seconds},
            "bandwidth": {name: self.bandwidth(name) for name in self.seconds},
            "speedup": self.speedup,
            "floor_speedup": self.floors[DENSE] / self.floors[SPARSE],
        }
        return {**asdict(self), **derived}


def cases_of(
    models: Sequence[str], batches: Sequence[int], lengths: Sequence[int], pages: Sequence[int], listed: Sequence[str]
) -> list[DecodeCase]:
    """The cross product of the options, or the ``MODEL:BATCH:LENGTH:PAGES`` cases listed; never both.

    Raises InputError when an option is missing or a case is not of that form.
    """
    options = {"--model": models, "--batch": batches, "--length": lengths, "--pages": pages}
    given = [name for name, values in options.items() if values]
    if listed:
        if given:
            raise InputError(f"--case names whole cases; leave out {', '.join(given)}")
        return [_parsed(text) for text in listed]
    missing = [name for name, values in options.items() if not values]
    if missing:
        raise InputError(
            f"{missing[0]} is missing; give each of {', '.join(options)}, or --case MODEL:BATCH:LENGTH:PAGES"
        )
    return [DecodeCase(*case) for case in itertools.product(models, batches, lengths, pages)]


def _parsed(text: str) -> DecodeCase:
    model, *numbers = text.rsplit(":", 3)
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        raise InputError(f"--case={text!r} must be MODEL:BATCH:LENGTH:PAGES, like random:qwen3-1.7b:32:16384:128")
    return DecodeCase(model, *map(int, numbers))


def check_case(case: DecodeCase, attention: AttentionConfig) -> BudgetSchedule:
    """The case's budget as a schedule of one bin. Raises InputError when the budget is too small or not sparse."""
    if case.batch < 1:
        raise InputError(f"batch={case.batch} must be at least 1")
    whole = -(-case.length // attention.page_size)
    if case.pages >= whole:
        raise InputError(
            f"pages={case.pages} is all of the {whole} pages of length={case.length}, which is dense; "
            f"give fewer than {whole} pages or a longer length"
        )
    layout = attention.layout
    return BudgetSchedule(
        (case.pages,), page_size=layout.page_size, sink_pages=layout.sink_pages, recent_pages=layout.recent_pages
    )


def bench_decode(
    cases: Sequence[DecodeCase],
    load: Callable[[str], LanguageModel],
    attention: AttentionConfig,
    rollout: RolloutConfig,
    *,
    bandwidth: float,
    timing: Timing,
) -> Iterator[DecodeRow]:
    """Rows as they are measured; ``bandwidth`` in bytes per second is what floors divide by.

    Every case is checked before the first is timed. Raises InputError as ``check_case`` and ``StepBench`` do.
    """
    schedules = {case: check_case(case, attention) for case in cases}
    marks = registry.load("sparrow.selectors", attention.selector.type).landmark_vectors
    for source, group in itertools.groupby(schedules, key=lambda case: case.model):
        model = load(source)
        floor = FloorModel.of(model, attention.layout, marks)
        for case in group:
            lengths = [case.length] * case.batch
            names = (DENSE, SPARSE, WITHOUT)
            bench = StepBench(model, attention, rollout, capacities=lengths, schedule=schedules[case], names=names)
            rounds = bench.time(lengths, timing)
            needed = {
                DENSE: floor.step(lengths, None).total,
                SPARSE: floor.step(lengths, [case.pages] * case.batch).total,
                WITHOUT: floor.weight_bytes,
            }
            yield DecodeRow(
                case=case,
                dense_layers=attention.dense_layers,
                seconds=medians(rounds),
                floors={name: count / bandwidth for name, count in needed.items()},
                bytes=needed,
                rounds=rounds,
            )
            del bench
            free_memory(model.device)
        device = model.device
        del model
        free_memory(device)


def free_memory(device: torch.device) -> None:
    """Give the memory of what is no longer referenced back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
