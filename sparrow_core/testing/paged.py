"""Random sequences laid out in a paged cache whose every unused slot is poisoned; hypothesis strategies for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from sparrow_core.cache import AttentionShape, DecodeBatch, PagedKVCache, PrefillBatch
from sparrow_core.contracts import PageSelector

NO_PAGE = -1
"""Fills page tables past a sequence's end, where entries are unspecified."""


@dataclass(frozen=True, slots=True)
class RandomSequence:
    """Queries, keys and values of every position of one sequence, on the CPU."""

    q_LND: torch.Tensor
    k_LKD: torch.Tensor
    v_LKD: torch.Tensor

    @staticmethod
    def make(shape: AttentionShape, length: int, seed: int, dtype: torch.dtype) -> RandomSequence:
        generator = torch.Generator().manual_seed(seed)

        def draw(heads: int) -> torch.Tensor:
            return torch.randn(length, heads, shape.head_dim, generator=generator, dtype=torch.float64).to(dtype)

        return RandomSequence(draw(shape.num_heads), draw(shape.num_kv_heads), draw(shape.num_kv_heads))


@dataclass(frozen=True, slots=True)
class PagedCase:
    """One decode step's sizes: a length and a budget in pages per sequence."""

    page_size: int
    group_size: int
    num_kv_heads: int
    head_dim: int
    lengths: tuple[int, ...]
    budgets: tuple[int, ...]
    seed: int

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(1, self.group_size * self.num_kv_heads, self.num_kv_heads, self.head_dim)

    def sequences(self, dtype: torch.dtype) -> list[RandomSequence]:
        return [
            RandomSequence.make(self.shape, length, self.seed + row, dtype) for row, length in enumerate(self.lengths)
        ]


def page_count(length: int, page_size: int) -> int:
    return -(-length // page_size)


def budgets_of_interest(num_pages: int, sink_pages: int, recent_pages: int) -> list[int]:
    """Budgets where a selection rule changes: 1, sink + recent, one more, and around all pages."""
    reserved = sink_pages + recent_pages
    wanted = {1, reserved, reserved + 1, num_pages - 1, num_pages, num_pages + 1}
    return sorted(budget for budget in wanted if budget >= 1)


def lengths_of_interest(page_size: int, num_pages: int) -> list[int]:
    """Lengths of ``num_pages`` pages whose last page holds 1, S - 1 and S tokens."""
    full = num_pages * page_size
    return sorted({full - page_size + 1, max(full - 1, full - page_size + 1), full})


@st.composite
def paged_cases(
    draw: st.DrawFn,
    page_sizes: Sequence[int] = (1, 8, 16),
    group_sizes: Sequence[int] = (1, 2, 3, 4, 5, 8),
    head_dims: Sequence[int] = (16,),
    max_batch: int = 4,
    max_pages: int = 9,
) -> PagedCase:
    """Any batch, empty rows and lengths at page edges among its rows."""
    page_size = draw(st.sampled_from(list(page_sizes)))
    batch = draw(st.integers(1, max_batch))
    edge = st.builds(
        lambda pages, off: max(0, pages * page_size + off), st.integers(0, max_pages - 1), st.sampled_from([-1, 0, 1])
    )
    lengths = st.one_of(st.just(0), edge, st.integers(0, (max_pages - 1) * page_size))
    return PagedCase(
        page_size=page_size,
        group_size=draw(st.sampled_from(list(group_sizes))),
        num_kv_heads=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from(list(head_dims))),
        lengths=tuple(draw(lengths) for _ in range(batch)),
        budgets=tuple(draw(st.integers(1, max_pages + 1)) for _ in range(batch)),
        seed=draw(st.integers(0, 2**20)),
    )


def poisoned_cache(
    shape: AttentionShape,
    *,
    num_pages: int,
    page_size: int,
    landmark_vectors: int,
    dtype: torch.dtype,
    device: torch.device | str,
    poison: float = torch.nan,
) -> PagedKVCache:
    """A cache whose every slot and landmark is ``poison``."""
    cache = PagedKVCache(
        shape,
        num_pages=num_pages,
        page_size=page_size,
        landmark_vectors=landmark_vectors,
        dtype=dtype,
        device=torch.device(device),
    )
    for tensor in (cache.k, cache.v, cache.landmarks):
        tensor.fill_(poison)
    return cache


def page_tables(capacities: Sequence[int], page_size: int, seed: int, shared_pages: int = 0) -> torch.Tensor:
    """int32 ``[B, W]`` of shuffled physical pages for sequences of up to these tokens.

    Args:
        shared_pages: the first pages of every row are those of row 0.

    Page 0 is given to no sequence. Entries past a sequence's capacity are ``NO_PAGE``; the table is one column wider
    than needed.
    """
    counts = [page_count(capacity, page_size) for capacity in capacities]
    shuffled = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed)) + 1
    table_BW = torch.full((len(counts), max(counts) + 1), NO_PAGE, dtype=torch.int32)
    start = 0
    for row, count in enumerate(counts):
        table_BW[row, :count] = shuffled[start : start + count]
        start += count
    if shared_pages:
        table_BW[:, :shared_pages] = table_BW[0, :shared_pages]
    return table_BW


def num_pool_pages(table_BW: torch.Tensor) -> int:
    return int(table_BW.max().clamp(min=0)) + 2


def decode_batch(
    lengths: Sequence[int], budgets: Sequence[int], table_BW: torch.Tensor, device: torch.device | str
) -> DecodeBatch:
    return DecodeBatch(
        lengths_B=torch.tensor(lengths, dtype=torch.int32, device=device),
        page_table_BW=table_BW.to(device),
        budgets_B=torch.tensor(budgets, dtype=torch.int32, device=device),
        max_length=max(lengths),
        max_budget=max(budgets),
    )


def prefill_batch(
    starts: Sequence[int], ends: Sequence[int], table_BW: torch.Tensor, device: torch.device | str
) -> PrefillBatch:
    """Chunks of positions ``start .. end - 1``."""
    chunks = [end - start for start, end in zip(starts, ends, strict=True)]
    offsets = torch.tensor([0, *chunks]).cumsum(0).to(torch.int32)
    return PrefillBatch(
        cu_seqlens_B1=offsets.to(device),
        lengths_B=torch.tensor(ends, dtype=torch.int32, device=device),
        page_table_BW=table_BW.to(device),
        max_length=max(ends),
        max_chunk=max(chunks),
    )


def fill_cache(
    cache: PagedKVCache,
    sequences: Sequence[RandomSequence],
    lengths: Sequence[int],
    table_BW: torch.Tensor,
    selector: PageSelector | None = None,
) -> None:
    """Write the first ``length`` tokens of each sequence in every layer, and full pages' landmarks."""
    size = cache.page_size
    for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        for at, page in enumerate(table_BW[row, : page_count(length, size)].tolist()):
            start, end = at * size, min((at + 1) * size, length)
            cache.k[:, page, :, : end - start] = sequence.k_LKD[start:end].transpose(0, 1).to(cache.device)
            cache.v[:, page, :, : end - start] = sequence.v_LKD[start:end].transpose(0, 1).to(cache.device)
            if end - start == size and selector is not None and cache.landmarks.shape[3]:
                for layer in cache.layers:
                    layer.landmarks_PKMD[page] = selector.landmarks(layer.k_PKSD[page]).to(cache.dtype)
