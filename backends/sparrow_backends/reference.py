"""The reference: readable torch on any device and dtype. Every other backend is tested against it.

Config: ``type: reference``.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_core.cache import AttentionShape, DecodeBatch, PagedKVCache, PageSelection, PrefillBatch
from sparrow_core.contracts import AttentionBackend, Capabilities, PageSelector, PluginConfig, SparseLayout
from sparrow_kernels.paged_append.naive import append, decode_slots, filled_pages, prefill_slots, write
from sparrow_kernels.paged_attention.naive import dense_pages, paged_decode, paged_prefill


class ReferenceBackend(AttentionBackend):
    """Paged attention by gathering the selected pages and masking; arithmetic in float32 at least."""

    class Config(PluginConfig):
        type: str = "reference"

    capabilities: ClassVar[Capabilities] = Capabilities(
        per_head_selection=True, device_budgets=True, graph_capture=False, lse=True
    )

    def __init__(self, config: PluginConfig, cache: PagedKVCache, layout: SparseLayout, selector: PageSelector) -> None:
        super().__init__(config, cache, layout, selector)
        self._batch: DecodeBatch | PrefillBatch | None = None
        self._scratch = torch.empty(2, 0, dtype=cache.dtype, device=cache.device)

    @classmethod
    def unsupported(
        cls,
        shape: AttentionShape,
        layout: SparseLayout,
        selector: type[PageSelector],
        dtype: torch.dtype,
        device: torch.device,
    ) -> list[str]:
        return []

    def plan(self, batch: DecodeBatch | PrefillBatch) -> None:
        size = self.cache.page_size
        if isinstance(batch, PrefillBatch):
            tokens = int(batch.cu_seqlens_B1[-1])
            places = prefill_slots(batch.cu_seqlens_B1, batch.lengths_B, batch.page_table_BW, tokens, size)
        else:
            places = decode_slots(batch.lengths_B, batch.page_table_BW, size)
            width = max(1, -(-batch.max_length // size))
            self._dense = PageSelection(
                *dense_pages(batch.page_table_BW[:, :width], batch.lengths_B, self.cache.shape.num_kv_heads, size)
            )
        self._pages_T, self._slots_T = places
        self._all_written = bool((self._pages_T >= 0).all())
        self._filled_X = filled_pages(self._pages_T, self._slots_T, size)
        self._batch = batch

    def append(self, layer: int, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> None:
        cache = self.cache.layers[layer]
        put = write if self._all_written else append
        put(k_TKD, v_TKD, cache.k_PKSD, cache.v_PKSD, self._pages_T, self._slots_T)
        if cache.landmarks_PKMD.shape[2] and len(self._filled_X):
            marks_XMD = self.selector.landmarks(cache.k_PKSD[self._filled_X].flatten(0, 1))
            marks_PKMD = cache.landmarks_PKMD
            marks_PKMD[self._filled_X] = marks_XMD.view(-1, *marks_PKMD.shape[1:]).to(marks_PKMD.dtype)

    def prefill(self, layer: int, q_TND: torch.Tensor, scale: float) -> torch.Tensor:
        assert isinstance(self._batch, PrefillBatch), "prefill() without a planned PrefillBatch"
        cache, batch = self.cache.layers[layer], self._batch
        return paged_prefill(
            q_TND, cache.k_PKSD, cache.v_PKSD, batch.cu_seqlens_B1, batch.lengths_B, batch.page_table_BW, scale
        )

    def decode(
        self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert isinstance(self._batch, DecodeBatch), "decode() without a planned DecodeBatch"
        cache, chosen = self.cache.layers[layer], pages or self._dense
        return paged_decode(
            q_BND,
            cache.k_PKSD,
            cache.v_PKSD,
            chosen.pages_BKJ,
            chosen.counts_BK,
            self._batch.lengths_B,
            scale,
            self._scratch_for(chosen.pages_BKJ.numel()),
        )

    def _scratch_for(self, num_pages: int) -> torch.Tensor:
        """Room for the gathered keys and values of ``num_pages`` pages of one head; grown by doubling, reused."""
        needed = num_pages * self.cache.page_size * self.cache.shape.head_dim
        if self._scratch.shape[1] < needed:
            self._scratch = self._scratch.new_empty(2, max(needed, 2 * self._scratch.shape[1]))
        return self._scratch
