"""How much memory a rollout takes, and the largest batch that fits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from sparrow_core.cache import PagedKVCache
from sparrow_core.engine.device_step import RING_STEPS
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel

GIB = 1 << 30
_MEMINFO = Path("/proc/meminfo")
SAMPLING_BYTES = 40
"""Most bytes alive at once per row and vocabulary entry while a token is drawn: logits in the model's dtype and in
float32, scaled logits, and up to three int64 temporaries of the random numbers."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of a rollout of ``batch`` sequences of up to ``length`` tokens."""

    batch: int
    length: int
    weights: int
    """Parameters and the rotary table."""
    kv: int
    landmarks: int
    records: int
    """Row state and the ring of records of the last steps."""
    workspace: int
    """Most temporaries of one decode step or prefill chunk; a CUDA graph keeps them reserved."""

    @property
    def resident(self) -> int:
        """What stays allocated between steps."""
        return self.weights + self.kv + self.landmarks + self.records

    @property
    def total(self) -> int:
        return self.resident + self.workspace


@dataclass(frozen=True, slots=True)
class Planner:
    """Memory plans of one model (``inspect_model`` is enough: no weight is read) under one cache layout."""

    model: LanguageModel
    page_size: int
    landmark_vectors: int
    prefill_chunk: int = 512
    topk_logprobs: int = 20

    def plan(self, batch: int, length: int) -> MemoryPlan:
        """Raises InputError when the batch or the length is out of range."""
        if batch < 1:
            raise InputError(f"batch={batch} must be at least 1")
        check_length(self.model, length)
        return self._plan(batch, length, batch * -(-length // self.page_size))

    def largest(self, length: int, memory: int) -> MemoryPlan:
        """The plan of the largest batch whose total is at most ``memory`` bytes.

        Raises InputError when not even one sequence fits; the message says what it needs.
        """
        one = self.plan(1, length)
        if one.total > memory:
            raise InputError(
                f"{memory / GIB:.2f} GiB cannot hold one sequence of {length} tokens: {self.model.name} needs "
                f"{one.total / GIB:.2f} GiB, {one.weights / GIB:.2f} of them for weights; give more memory, a shorter "
                "length or a smaller model"
            )
        fits, beyond = 1, 2
        while self.plan(beyond, length).total <= memory:
            fits, beyond = beyond, 2 * beyond
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if self.plan(middle, length).total <= memory else (fits, middle)
        return self.plan(fits, length)

    def check_fits(self, batch: int, lengths: list[int], free: int) -> None:
        """Raises InputError when a cache of these lengths' pages and a step do not fit ``free`` bytes beside the
        weights; the message says which batch of the longest does."""
        pages = sum(-(-length // self.page_size) for length in lengths)
        plan = self._plan(batch, max(lengths), pages)
        needed = plan.total - plan.weights
        if needed <= free:
            return
        longest = max(lengths)
        one = self.plan(1, longest).total - plan.weights
        fits = self.largest(longest, free + plan.weights).batch if one <= free else 0
        advice = f"a batch of {fits} at {longest} tokens fits" if fits else f"not even one row of {longest} tokens fits"
        raise InputError(
            f"batch={batch} at length={longest} needs {needed / GIB:.2f} GiB beside the weights of {self.model.name}, "
            f"but {free / GIB:.2f} GiB are free; {advice}"
        )

    def _plan(self, batch: int, length: int, pages: int) -> MemoryPlan:
        shape, dtype = self.model.shape, self.model.dtype
        all_pages = pages * PagedKVCache.bytes_per_page(shape, self.page_size, self.landmark_vectors, dtype)
        kv = pages * PagedKVCache.bytes_per_page(shape, self.page_size, 0, dtype)
        width = -(-length // self.page_size)
        ring = RING_STEPS * (3 * 8 + 4 + self.topk_logprobs * 8 + 8 + 4)
        state = 6 * 8 + 4 * 4 + 1 + 4 * width
        spec, vocab = self.model.spec, self.model.vocab_size
        scores = 4 * shape.num_kv_heads * width
        step = batch * (vocab * SAMPLING_BYTES + scores + 8 * spec.dim * dtype.itemsize)
        chunk = self.prefill_chunk * (3 * spec.ffn_dim + 8 * spec.dim) * dtype.itemsize + vocab * SAMPLING_BYTES
        return MemoryPlan(
            batch=batch,
            length=length,
            weights=weight_bytes(self.model),
            kv=kv,
            landmarks=all_pages - kv,
            records=batch * (ring + state),
            workspace=max(step, chunk),
        )


def check_length(model: LanguageModel, length: int) -> None:
    if not 1 <= length <= model.context_length:
        raise InputError(f"length={length} is outside {model.name}'s context; give 1 to {model.context_length} tokens")


def weight_bytes(model: LanguageModel) -> int:
    """Bytes of all parameters, tied ones once, and of the float32 rotary table that all layers share."""
    numbers: int = sum(p.numel() for p in model.module.parameters())
    return numbers * model.dtype.itemsize + model.context_length * 2 * model.shape.head_dim * 4


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated: as the driver and torch's allocator say, or the host's available memory."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    for line in _MEMINFO.read_text().splitlines() if _MEMINFO.is_file() else []:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return total_bytes(device)


def total_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
