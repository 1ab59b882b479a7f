"""The processes of a run: who am I, which device is mine, and what do the others have.

Collectives on host objects go through gloo; every rank must make the same calls in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from sparrow_core.errors import InputError
from sparrow_core.model import titan_compat  # noqa: F401  (before torchtitan)
from sparrow_trainers.titan.config import ParallelSection

from torchtitan.config import CommConfig, ParallelismConfig  # isort: skip
from torchtitan.distributed import ParallelDims  # isort: skip
from torchtitan.distributed import utils as dist_utils  # isort: skip

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among all."""

    rank: int
    world: int
    device: torch.device
    dims: Any
    """``torchtitan.distributed.ParallelDims``."""
    parallelism: Any
    """``torchtitan.config.ParallelismConfig``."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def dp_degree(self) -> int:
        """Ranks with different sequences in an update."""
        return int(self.dims.dp_replicate * self.dims.dp_shard)

    @property
    def dp_rank(self) -> int:
        mesh = self.dims.get_optional_mesh("batch")
        return 0 if mesh is None else int(mesh.get_local_rank())

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value, by rank, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def from_main(self, value: Value) -> Value:
        """Rank 0's value on every rank."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the data-parallel ranks (those of one tensor-parallel group hold equal values)."""
        mesh = self.dims.get_optional_mesh("batch")
        if mesh is None:
            return values
        total: torch.Tensor = dist_utils.dist_sum_tensor(values.to(self.device), mesh)
        return total.to(values.device)

    def sum_all(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, for what each of them computed of samples of its own."""
        if self.world == 1:
            return values
        total = values.to(self.device, copy=True)
        dist.all_reduce(total)
        return total.to(values.device)

    def check_all(self, error: str | None) -> None:
        """Raise InputError on every rank when any rank has an error to tell, so that none waits for another."""
        errors = [text for text in self.gather(error) if text is not None]
        if errors:
            raise InputError(errors[0])


def check_world(config: ParallelSection, world: int) -> None:
    """Raises InputError when ``world`` ranks cannot be laid out as configured."""
    fixed = config.dp_replicate * config.tp * (1 if config.dp_shard == -1 else config.dp_shard)
    fits = world % fixed == 0 if config.dp_shard == -1 else world == fixed
    if not fits:
        shape = f"dp_replicate={config.dp_replicate}, dp_shard={config.dp_shard}, tp={config.tp}"
        raise InputError(
            f"parallel: {world} ranks cannot be laid out as {shape}; start a multiple of {fixed} ranks with "
            "torchrun --nproc-per-node, or change parallel.dp_replicate, dp_shard or tp"
        )


@contextmanager
def running_ranks(config: ParallelSection, device: torch.device) -> Iterator[Ranks]:
    """Join the ranks that torchrun started (one process alone without it), and leave them at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    check_world(config, world)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    timeout = timedelta(minutes=config.timeout_minutes)
    if world == 1:
        backend = "gloo" if device.type == "cpu" else "cuda:nccl,cpu:gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
    else:
        comm = CommConfig(init_timeout_seconds=round(timeout.total_seconds()), trace_buf_size=0)
        dist_utils.init_distributed(comm, enable_cpu_backend=device.type == "cuda")
    try:
        # The other backends need a newer torch, or print other losses (see titan_compat).
        dist_utils.set_spmd_backend("partial_dtensor")
        parallelism = ParallelismConfig(
            data_parallel_replicate_degree=config.dp_replicate,
            data_parallel_shard_degree=config.dp_shard,
            tensor_parallel_degree=config.tp,
            fsdp_reshard_after_forward=config.reshard_after_forward,
            enable_sequence_parallel=False,
            spmd_backend="partial_dtensor",
        )
        dims = ParallelDims.from_config(parallelism, world)
        dims.build_mesh()
        yield Ranks(dist.get_rank(), world, device, dims, parallelism)
    finally:
        dist.destroy_process_group()
