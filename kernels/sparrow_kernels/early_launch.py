"""Programmatic dependent launch: a kernel starts while the one before it in the stream still runs.

The earlier kernel calls ``launch_dependents``; the later one, launched with ``launch_pdl=True``, may only touch what
was written before the earlier kernel began, until it calls ``wait_for_previous``.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import torch
import triton
from triton.language.extra import cuda as tl_cuda


def overlaps_launches(device: torch.device) -> bool:
    """Whether the device can launch a kernel early (compute capability 9.0 and newer)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def launch_dependents():
    tl_cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous():
    tl_cuda.gdc_wait()
