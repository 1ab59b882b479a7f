"""Lets torchtitan 0.3.0 run on torch 2.11 to 2.14, and on hosts without a GPU. Import before any torchtitan module.

What torchtitan 0.3.0 takes for granted and what is supplied here:

* torch 2.11: ``torch.distributed.fsdp.DataParallelMeshDims``, ``torch.compiler._is_non_strict_tracing``;
* torch 2.11 to 2.13: ``torch.distributed.set_timeout``;
* no CUDA: a device module for "cpu", ``barrier`` without ``device_ids``, and FSDP reduction by plain sums
  (gloo has no PREMUL_SUM).
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp


@dataclasses.dataclass(frozen=True)
class _DataParallelMeshDims:
    """Named where torch lacks the class; torchtitan builds one only for backends that torch 2.11 cannot run."""

    shard: object = None
    replicate: object = None


def _never() -> bool:
    return False


def _supply(module: Any, name: str, value: object) -> None:
    if not hasattr(module, name):
        setattr(module, name, value)


def _supply_missing_torch_names() -> None:
    _supply(fsdp, "DataParallelMeshDims", _DataParallelMeshDims)
    _supply(torch.compiler, "_is_non_strict_tracing", _never)
    if dist.is_available():
        from torch.distributed import distributed_c10d

        _supply(dist, "set_timeout", getattr(distributed_c10d, "_set_pg_timeout", None))


class _CpuDevice(types.ModuleType):
    """``torch.cpu`` with the calls that torchtitan makes on an accelerator's module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, device: object) -> None:
        return None

    def get_device_name(self, device: object = None) -> str:
        return "cpu"

    def get_device_properties(self, device: object = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(total_memory=1 << 34)

    def memory_stats(self, device: object = None) -> dict[str, int]:
        return {}

    def reset_peak_memory_stats(self, device: object = None) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def synchronize(self, device: object = None) -> None:
        return None


def _run_without_gpu() -> None:
    from torchtitan.tools import utils as titan_tools

    # The other modules take these two names over when they are imported.
    titan_tools.device_type, titan_tools.device_module = "cpu", _CpuDevice("sparrow_cpu_device")
    from torchtitan.distributed import fsdp as titan_fsdp
    from torchtitan.distributed import utils as titan_distributed

    titan_distributed.set_pg_timeouts = _with_plain_barrier(titan_distributed.set_pg_timeouts)
    titan_fsdp.disable_fsdp_gradient_division = _with_plain_sums(titan_fsdp.disable_fsdp_gradient_division)


def _with_plain_barrier(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        barrier: Any = dist.barrier

        def plain_barrier(*args: Any, device_ids: object = None, **kwargs: Any) -> Any:
            return barrier(*args, **kwargs)

        vars(dist)["barrier"] = plain_barrier
        try:
            function(*args, **kwargs)
        finally:
            vars(dist)["barrier"] = barrier

    return wrapped


def _with_plain_sums(function: Callable[[torch.nn.Module], None]) -> Callable[[torch.nn.Module], None]:
    @functools.wraps(function)
    def wrapped(model: torch.nn.Module) -> None:
        function(model)
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.set_force_sum_reduction_for_comms(True)

    return wrapped


_supply_missing_torch_names()
if not torch.cuda.is_available():
    _run_without_gpu()
