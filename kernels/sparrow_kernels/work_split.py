"""How a fixed grid of programs shares work whose amount is known only on the device.

Rows of work are cut into units and laid end to end; the units are divided evenly over the programs, so a program's
share may cross rows and a row may be shared by programs. Since program and row both ascend along the units,
``program + row`` names each (program, row) piece uniquely, and the pieces of one row are consecutive.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def active_programs(total_units, num_programs, MIN_UNITS: tl.constexpr):
    """Programs that get work, each at least ``MIN_UNITS`` units where there are that many."""
    return tl.minimum(num_programs, tl.maximum(total_units // MIN_UNITS, 1))


@triton.jit
def program_start(program, total_units, programs):
    """First unit of a program; it ends where the next one starts."""
    return (program.to(tl.int64) * total_units // programs).to(tl.int32)


@triton.jit
def program_of_unit(unit, total_units, programs):
    """The program whose share holds a unit: the inverse of ``program_start``."""
    return (((unit + 1).to(tl.int64) * programs - 1) // total_units).to(tl.int32)


@triton.jit
def pick(values, index, at):
    """``values[at]`` of a vector in registers; ``index`` is its arange."""
    return tl.sum(tl.where(index == at, values, 0), 0)


@triton.jit
def last_to_arrive(arrivals, row, pieces):
    """Whether this program is the last of a row's ``pieces``; what the others stored before is then visible.

    The last one sets the counter back to 0 for the next launch.
    """
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals + row, 1, sem="acq_rel", scope="gpu")
    last = arrived == pieces - 1
    if last:
        tl.store(arrivals + row, 0)
    return last


def num_programs(device: torch.device, per_processor: int) -> int:
    """Size of a grid that fills the device once; a few in the interpreter."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count) * per_processor
