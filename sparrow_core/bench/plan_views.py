"""``sparrow bench plan``: plans of models by length, the largest batch or given ones, checked on request."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparrow_core import registry
from sparrow_core.bench.decode import free_memory
from sparrow_core.bench.plan import GIB, MemoryPlan, Planner, total_bytes
from sparrow_core.bench.plan_check import PlanCheck, check_plan
from sparrow_core.bench.setup import BenchSetup
from sparrow_core.errors import InputError
from sparrow_core.model import inspect_model


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A plan, the memory it was made for, and what was measured when it was built."""

    model: str
    memory: int
    """Bytes to fill, the reserve taken off."""
    plan: MemoryPlan
    check: PlanCheck | None

    @property
    def fits(self) -> bool:
        return self.plan.total <= self.memory

    def as_json(self) -> dict[str, Any]:
        derived: dict[str, Any] = {"fits": self.fits, "resident": self.plan.resident, "total": self.plan.total}
        if self.check is not None:
            derived["resident_error"] = self.check.resident_error
            derived["total_error"] = self.check.total_error
        return {**asdict(self), **derived}


def bench_plan(
    models: Sequence[str],
    lengths: Sequence[int],
    batches: Sequence[int],
    setup: BenchSetup,
    *,
    memory_gib: float | None,
    reserve_gib: float,
    check: bool,
) -> Iterator[PlanRow]:
    """One row per model and length (the largest batch), or per model, length and batch.

    Raises InputError when an option is missing, not one sequence fits, or a check needs what is not there.
    """
    missing = [name for name, values in (("--model", models), ("--length", lengths)) if not values]
    if missing:
        raise InputError(f"{missing[0]} is missing; give --model and --length")
    memory = _memory(memory_gib, reserve_gib, setup)
    marks = registry.load("sparrow.selectors", setup.config.attention.selector.type).landmark_vectors
    rollout = setup.config.rollout
    for source, length in itertools.product(models, lengths):
        model = inspect_model(source, dtype=setup.dtype)
        size = setup.config.attention.page_size
        planner = Planner(model, size, marks, rollout.prefill_chunk, rollout.topk_logprobs)
        plans = [planner.plan(batch, length) for batch in batches] or [planner.largest(length, memory)]
        for plan in plans:
            yield PlanRow(source, memory, plan, _checked(source, plan, setup) if check else None)


def _checked(source: str, plan: MemoryPlan, setup: BenchSetup) -> PlanCheck:
    attention, rollout = setup.config.attention, setup.config.rollout
    free_memory(setup.device)
    try:
        return check_plan(plan, lambda: setup.load(source), attention, rollout, setup.device)
    finally:
        free_memory(setup.device)


def _memory(memory_gib: float | None, reserve_gib: float, setup: BenchSetup) -> int:
    if memory_gib is not None and not memory_gib > 0:
        raise InputError(f"--memory-gib={memory_gib} must be above 0")
    if memory_gib is not None:
        whole = int(memory_gib * GIB)
    elif setup.device.type == "cuda" or setup.hardware.memory is None:
        whole = total_bytes(setup.device)
    else:
        whole = setup.hardware.memory
    if not 0 <= reserve_gib * GIB < whole:
        raise InputError(f"--reserve-gib={reserve_gib} must be at least 0 and below the memory, {whole / GIB:.2f} GiB")
    return whole - int(reserve_gib * GIB)
