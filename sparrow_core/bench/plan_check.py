"""A memory plan against what torch's allocator reports once the same rollout is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sparrow_core.bench.plan import MemoryPlan
from sparrow_core.bench.steps import StepBench
from sparrow_core.config import AttentionConfig, RolloutConfig
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """Bytes as planned and as measured."""

    resident_planned: int
    resident_measured: int
    total_planned: int
    total_measured: int
    """The allocator's peak over building and running a dense and a sparse step."""

    @property
    def resident_error(self) -> float:
        """Planned over measured, less 1."""
        return self.resident_planned / self.resident_measured - 1

    @property
    def total_error(self) -> float:
        return self.total_planned / self.total_measured - 1


def check_plan(
    plan: MemoryPlan,
    load: Callable[[], LanguageModel],
    attention: AttentionConfig,
    rollout: RolloutConfig,
    device: torch.device,
) -> PlanCheck:
    """Build the planned model, cache and step, run it dense and sparse, and read the allocator.

    Raises InputError on a device other than CUDA, whose allocator reports nothing.
    """
    if device.type != "cuda":
        raise InputError(f"--check reads the CUDA allocator, but the device is {device.type}; pass --device cuda")
    before = torch.cuda.memory_allocated(device)
    model = load()
    layout = attention.layout
    schedule = BudgetSchedule(
        (layout.sink_pages + layout.recent_pages + 1,),
        page_size=layout.page_size,
        sink_pages=layout.sink_pages,
        recent_pages=layout.recent_pages,
    )
    bench = StepBench(model, attention, rollout, capacities=[plan.length] * plan.batch, schedule=schedule)
    resident = torch.cuda.memory_allocated(device) - before
    torch.cuda.reset_peak_memory_stats(device)
    for name in bench.names:
        bench.reset()
        bench.call(name)()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    return PlanCheck(plan.resident, resident, plan.total, peak)
