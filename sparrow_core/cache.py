"""Device memory of the paged KV cache, in HND layout, and one step's view of it.

Shape legend, used across the project:
  B sequences, T tokens, N query heads, K KV heads, G = N // K (GQA group), D head dim,
  P pages in the pool, S tokens per page, M landmark vectors per page,
  W page-table width (pages per sequence), J selected pages per KV head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a backend must know of a model to say whether it can serve it."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's pages. Unused slots may hold anything, NaN included."""

    layer: int
    k_PKSD: torch.Tensor
    v_PKSD: torch.Tensor
    landmarks_PKMD: torch.Tensor
    """Summaries of full pages' post-RoPE keys, written by ``AttentionBackend.append``. M may be 0."""

    @property
    def page_size(self) -> int:
        return self.k_PKSD.shape[2]


class PagedKVCache:
    """Keys, values and landmarks of every layer, allocated once.

    Args:
        shape: the model's attention shape.
        num_pages: pages in the pool, P.
        page_size: tokens per page, S.
        landmark_vectors: vectors kept per page, M (the selector's ``landmark_vectors``).
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        num_pages: int,
        page_size: int,
        landmark_vectors: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape = shape
        self.num_pages = num_pages
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        pages = (shape.num_layers, num_pages, shape.num_kv_heads, page_size, shape.head_dim)
        marks = (shape.num_layers, num_pages, shape.num_kv_heads, landmark_vectors, shape.head_dim)
        self.k = torch.empty(pages, dtype=dtype, device=device)
        self.v = torch.empty(pages, dtype=dtype, device=device)
        self.landmarks = torch.empty(marks, dtype=dtype, device=device)
        self.layers = tuple(
            LayerCache(layer, self.k[layer], self.v[layer], self.landmarks[layer]) for layer in range(shape.num_layers)
        )

    @staticmethod
    def bytes_per_page(shape: AttentionShape, page_size: int, landmark_vectors: int, dtype: torch.dtype) -> int:
        """Bytes one page takes over all layers, landmarks included."""
        vectors = 2 * page_size + landmark_vectors
        return shape.num_layers * shape.num_kv_heads * shape.head_dim * vectors * dtype.itemsize

    def copy_pages(self, source: list[int], target: list[int]) -> None:
        """Copy whole pages, landmarks included, in every layer (copy-on-write of shared pages)."""
        src = torch.tensor(source, device=self.device)
        dst = torch.tensor(target, device=self.device)
        for tensor in (self.k, self.v, self.landmarks):
            tensor[:, dst] = tensor[:, src]


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One decode step: one new token per sequence. All tensors live on the cache's device."""

    lengths_B: torch.Tensor
    """int32 context length, the current token counted; 0 marks an empty row."""
    page_table_BW: torch.Tensor
    """int32 physical page of each logical page; entries past ceil(length / S) are unspecified."""
    budgets_B: torch.Tensor
    """int32 pages to attend to in sparse layers."""
    max_length: int
    """Host-side upper bound of ``lengths_B``; sizes scratch space, never results."""
    max_budget: int
    """Host-side upper bound of ``budgets_B``."""


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    """One dense prefill chunk per sequence, packed along T without padding."""

    cu_seqlens_B1: torch.Tensor
    """int32 ``[B + 1]`` offsets of each sequence's chunk in the packed tokens."""
    lengths_B: torch.Tensor
    """int32 context length after the chunk; the chunk's tokens are its last ones."""
    page_table_BW: torch.Tensor
    max_length: int
    max_chunk: int


@dataclass(frozen=True, slots=True)
class PageSelection:
    """Pages a step attends to, per sequence and KV head.

    Pages are physical ids in ascending logical order, so the sequence's last (maybe partial) page is
    entry ``counts - 1``. Entries past the count are unspecified but are valid page ids.
    """

    pages_BKJ: torch.Tensor
    """int32."""
    counts_BK: torch.Tensor
    """int32; 0 for an empty row."""
