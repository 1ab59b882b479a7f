"""Attention over a few pages at a time, merged by log-sum-exp: scratch memory does not grow with the context.

Shapes follow the legend of ``sparrow_core.cache``; Q is queries that share a KV head, X slots of one chunk.
"""

from typing import ClassVar

import torch
from pydantic import Field

from sparrow_core.cache import AttentionShape, DecodeBatch, PagedKVCache, PageSelection, PrefillBatch
from sparrow_core.contracts import AttentionBackend, Capabilities, PageSelector, PluginConfig, SparseLayout
from sparrow_kernels.paged_append.naive import append, decode_slots, filled_pages, prefill_slots
from sparrow_kernels.paged_attention.naive import dense_pages, gather_pages, math_dtype, merge_lse
from sparrow_kernels.select_pages.naive import num_pages


class ChunkedConfig(PluginConfig):
    type: str = "chunked"
    chunk_pages: int = Field(16, ge=1, description="pages that are gathered at a time")


class ChunkedBackend(AttentionBackend):
    """Plain torch on any device and dtype; arithmetic in float32 at least."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = ChunkedConfig
    capabilities: ClassVar[Capabilities] = Capabilities(
        per_head_selection=True, device_budgets=True, graph_capture=False, lse=True
    )

    def __init__(self, config: PluginConfig, cache: PagedKVCache, layout: SparseLayout, selector: PageSelector) -> None:
        super().__init__(config, cache, layout, selector)
        assert isinstance(config, ChunkedConfig)
        self.chunk_pages = config.chunk_pages

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
        self._batch = batch
        if isinstance(batch, PrefillBatch):
            num_tokens = int(batch.cu_seqlens_B1[-1])
            self._pages_T, self._slots_T = prefill_slots(
                batch.cu_seqlens_B1, batch.lengths_B, batch.page_table_BW, num_tokens, size
            )
        else:
            self._pages_T, self._slots_T = decode_slots(batch.lengths_B, batch.page_table_BW, size)
            table_BW = batch.page_table_BW[:, : max(1, -(-batch.max_length // size))]
            heads = self.cache.shape.num_kv_heads
            self._every = PageSelection(*dense_pages(table_BW, batch.lengths_B, heads, size))
        self._filled_X = filled_pages(self._pages_T, self._slots_T, size)

    def append(self, layer: int, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> None:
        cache = self.cache.layers[layer]
        append(k_TKD, v_TKD, cache.k_PKSD, cache.v_PKSD, self._pages_T, self._slots_T)
        marks_PKMD = cache.landmarks_PKMD
        if marks_PKMD.shape[2] and len(self._filled_X):
            marks_XMD = self.selector.landmarks(cache.k_PKSD[self._filled_X].flatten(0, 1))
            marks_PKMD[self._filled_X] = marks_XMD.view(-1, *marks_PKMD.shape[1:]).to(marks_PKMD.dtype)

    def decode(
        self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert isinstance(self._batch, DecodeBatch), "decode() without a planned DecodeBatch"
        chosen, size = pages or self._every, self.cache.page_size
        B, N, D = q_BND.shape
        unfilled_B = num_pages(self._batch.lengths_B, size) * size - self._batch.lengths_B
        tokens_BK = (chosen.counts_BK * size - unfilled_B[:, None]).clamp(min=0)
        q_BKQD = q_BND.reshape(B, chosen.counts_BK.shape[1], -1, D)
        out_BKQD, lse_BKQ = self._attend(layer, q_BKQD, chosen.pages_BKJ, tokens_BK[:, :, None], scale)
        return out_BKQD.reshape(B, N, D).to(q_BND.dtype), lse_BKQ.reshape(B, N).float()

    def prefill(self, layer: int, q_TND: torch.Tensor, scale: float) -> torch.Tensor:
        assert isinstance(self._batch, PrefillBatch), "prefill() without a planned PrefillBatch"
        out_TND, offsets = torch.empty_like(q_TND), self._batch.cu_seqlens_B1.tolist()
        _, N, D = q_TND.shape
        K, size = self.cache.shape.num_kv_heads, self.cache.page_size
        for row, length in enumerate(self._batch.lengths_B.tolist()):
            start, end = offsets[row], offsets[row + 1]
            if start == end:
                continue
            C, G = end - start, N // K
            pages_1KW = self._batch.page_table_BW[row, : -(-length // size)].expand(1, K, -1)
            # A query sees the context up to its own token; the G heads of a group are rows of one product.
            seen_C = torch.arange(length - C + 1, length + 1, device=q_TND.device)
            q_1KQD = q_TND[start:end].reshape(C, K, G, D).permute(1, 2, 0, 3).reshape(1, K, G * C, D)
            out_1KQD, _ = self._attend(layer, q_1KQD, pages_1KW, seen_C.repeat(G).expand(1, K, -1), scale)
            out_TND[start:end] = out_1KQD.view(K, G, C, D).permute(2, 0, 1, 3).reshape(C, N, D).to(q_TND.dtype)
        return out_TND

    def _attend(
        self, layer: int, q_BKQD: torch.Tensor, pages_BKJ: torch.Tensor, seen_BKQ: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each query over the first ``seen`` tokens of its pages (Q may be 1 there); output and LSE in float32."""
        q_BKQD = q_BKQD.to(math_dtype(q_BKQD.dtype)) * scale
        out_BKQD, lse_BKQ = torch.zeros_like(q_BKQD), torch.full_like(q_BKQD[..., 0], -torch.inf)
        for first in range(0, pages_BKJ.shape[2], self.chunk_pages):
            chunk_BKJ = pages_BKJ[:, :, first : first + self.chunk_pages]
            part = self._attend_chunk(layer, q_BKQD, chunk_BKJ, seen_BKQ - first * self.cache.page_size)
            out_BKQD, lse_BKQ = merge_lse((out_BKQD, part[0]), (lse_BKQ, part[1]))
        return out_BKQD, lse_BKQ

    def _attend_chunk(
        self, layer: int, q_BKQD: torch.Tensor, pages_BKJ: torch.Tensor, seen_BKQ: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cache = self.cache.layers[layer]
        k_BKXD = gather_pages(cache.k_PKSD, pages_BKJ).to(q_BKQD.dtype)
        v_BKXD = gather_pages(cache.v_PKSD, pages_BKJ).to(q_BKQD.dtype)
        seen_BKQX = torch.arange(k_BKXD.shape[2], device=q_BKQD.device) < seen_BKQ[..., None]
        # Slots that no query sees may hold NaN, which a weight of zero would not silence.
        v_BKXD = v_BKXD.masked_fill(~seen_BKQX.any(2)[..., None], 0)
        scores_BKQX = (q_BKQD @ k_BKXD.mT).masked_fill(~seen_BKQX, -torch.inf)
        lse_BKQ = scores_BKQX.logsumexp(-1)
        finite_BKQ = lse_BKQ.masked_fill(lse_BKQ == -torch.inf, 0)
        return (scores_BKQX - finite_BKQ[..., None]).exp() @ v_BKXD, lse_BKQ
