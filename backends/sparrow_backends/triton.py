"""The product's backend: Triton kernels over the paged cache, made to be captured in CUDA graphs.

Config: ``type: triton``.

Lengths, counts, budgets and page tables are read on the device and every launch has a fixed grid, so a captured step
follows whatever its tensors hold. Scratch space grows in ``plan``; older scratch stays alive for graphs that hold it.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_backends.paged_writer import PagedWriter
from sparrow_core.cache import AttentionShape, DecodeBatch, PagedKVCache, PageSelection, PrefillBatch
from sparrow_core.contracts import AttentionBackend, Capabilities, PageSelector, PluginConfig, SparseLayout
from sparrow_kernels.jit_math import interpreted
from sparrow_kernels.paged_attention.triton import DecodeWorkspace, decode_workspace, paged_decode, tuning_for
from sparrow_kernels.paged_attention.triton_prefill import paged_prefill
from sparrow_kernels.work_split import num_programs

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MAX_GROUP = 64


class TritonBackend(AttentionBackend):
    """Paged attention by the kernels of ``sparrow_kernels``."""

    class Config(PluginConfig):
        type: str = "triton"

    capabilities: ClassVar[Capabilities] = Capabilities(
        per_head_selection=True, device_budgets=True, graph_capture=True, lse=True
    )

    def __init__(self, config: PluginConfig, cache: PagedKVCache, layout: SparseLayout, selector: PageSelector) -> None:
        super().__init__(config, cache, layout, selector)
        self._writer = PagedWriter(cache, selector)
        self._dense, self._selected = (
            tuning_for(cache.shape.head_dim, cache.dtype, dense=dense) for dense in (True, False)
        )
        self._most_programs = max(
            num_programs(cache.device, tuning.per_processor) for tuning in (self._dense, self._selected)
        )
        self._batch: DecodeBatch | PrefillBatch | None = None
        self._workspaces: list[DecodeWorkspace] = []

    @classmethod
    def unsupported(
        cls,
        shape: AttentionShape,
        layout: SparseLayout,
        selector: type[PageSelector],
        dtype: torch.dtype,
        device: torch.device,
    ) -> list[str]:
        reasons = []
        if device.type != "cuda" and not interpreted():
            reasons.append(f"triton needs a CUDA device, not {device.type}; use attention.backend=sdpa")
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            reasons.append("triton needs compute capability 8.0 or newer; use attention.backend=sdpa")
        if dtype not in _DTYPES:
            reasons.append(f"triton serves bfloat16, float16 and float32, not {dtype}; use attention.backend=sdpa")
        if shape.head_dim not in (16, 32, 64, 128, 256):
            reasons.append(
                f"triton serves head_dim 16, 32, 64, 128 and 256, not {shape.head_dim}; use attention.backend=sdpa"
            )
        if shape.group_size > _MAX_GROUP:
            reasons.append(
                f"triton serves up to {_MAX_GROUP} query heads per KV head, not {shape.group_size}; "
                "use attention.backend=sdpa"
            )
        return reasons

    def plan(self, batch: DecodeBatch | PrefillBatch) -> None:
        self._batch = batch
        if isinstance(batch, DecodeBatch):
            self._grow_workspace(batch.lengths_B.shape[0] * self.cache.shape.num_kv_heads)

    def append(self, layer: int, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> None:
        assert self._batch is not None, "append() before plan()"
        self._writer.append(layer, self._batch, k_TKD, v_TKD)

    def prefill(self, layer: int, q_TND: torch.Tensor, scale: float) -> torch.Tensor:
        assert isinstance(self._batch, PrefillBatch), "prefill() without a planned PrefillBatch"
        cache, batch = self.cache.layers[layer], self._batch
        return paged_prefill(
            q_TND,
            cache.k_PKSD,
            cache.v_PKSD,
            batch.cu_seqlens_B1,
            batch.lengths_B,
            batch.page_table_BW,
            scale,
            batch.max_chunk,
        )

    def decode(
        self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert isinstance(self._batch, DecodeBatch), "decode() without a planned DecodeBatch"
        cache, batch = self.cache.layers[layer], self._batch
        if pages is None:
            every_BKW = batch.page_table_BW[:, None].expand(-1, self.cache.shape.num_kv_heads, -1)
            pages_BKJ, counts_BK, tuning = every_BKW, None, self._dense
        else:
            pages_BKJ, counts_BK, tuning = pages.pages_BKJ, pages.counts_BK, self._selected
        return paged_decode(
            q_BND,
            cache.k_PKSD,
            cache.v_PKSD,
            pages_BKJ,
            counts_BK,
            batch.lengths_B,
            scale,
            workspace=self._workspaces[-1],
            tuning=tuning,
        )

    def _grow_workspace(self, num_rows: int) -> None:
        if self._workspaces and self._workspaces[-1].arrivals.numel() >= num_rows:
            return
        shape = self.cache.shape
        self._workspaces.append(
            decode_workspace(num_rows, shape.group_size, shape.head_dim, self.cache.device, self._most_programs)
        )
