"""FlashInfer's kernels: dense paged decode and prefill, and selected pages with the KV heads folded into the batch.

Config: ``type: flashinfer``. Needs the ``gpu`` extra (flashinfer-python).

FlashInfer plans on the host, so ``plan`` waits for the lengths and a step cannot be captured in a graph. No FlashInfer
kernel for Hopper takes other pages for each KV head; a head's pages are a sequence of their own here: page ``p`` of
head ``h`` is page ``p * K + h`` of one-head pages.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any, ClassVar

import torch

from sparrow_backends.paged_writer import PagedWriter
from sparrow_core.cache import AttentionShape, DecodeBatch, LayerCache, PagedKVCache, PageSelection, PrefillBatch
from sparrow_core.contracts import AttentionBackend, Capabilities, PageSelector, PluginConfig, SparseLayout

_WORKSPACE_BYTES = 256 << 20
_LN_2 = math.log(2)


class FlashInferBackend(AttentionBackend):
    """Paged attention by FlashInfer's tensor-core kernels."""

    class Config(PluginConfig):
        type: str = "flashinfer"

    capabilities: ClassVar[Capabilities] = Capabilities(
        per_head_selection=True, device_budgets=False, graph_capture=False, lse=True
    )

    def __init__(self, config: PluginConfig, cache: PagedKVCache, layout: SparseLayout, selector: PageSelector) -> None:
        super().__init__(config, cache, layout, selector)
        import flashinfer

        self._flashinfer: Any = flashinfer
        self._writer = PagedWriter(cache, selector)
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=cache.device)
        self._prefill: Any = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "HND", backend="fa2")
        self._dense: Any = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, "HND", use_tensor_cores=True, backend="fa2"
        )
        self._folded: dict[tuple[int, int], _Folded] = {}
        self._batch: DecodeBatch | PrefillBatch | None = None
        self._planned: dict[str, float] = {}
        """Softmax scale that each kind of kernel is planned with for the current batch."""

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
        if importlib.util.find_spec("flashinfer") is None:
            reasons.append(
                "flashinfer-python is not installed; install sparrow-rollout[gpu] or use attention.backend=triton"
            )
        if device.type != "cuda":
            reasons.append(f"flashinfer needs a CUDA device, not {device.type}; use attention.backend=sdpa")
        if dtype not in (torch.bfloat16, torch.float16):
            reasons.append(f"flashinfer serves bfloat16 and float16, not {dtype}; use attention.backend=triton")
        if shape.head_dim not in (64, 128, 256):
            reasons.append(
                f"flashinfer serves head_dim 64, 128 and 256, not {shape.head_dim}; use attention.backend=triton"
            )
        return reasons

    def plan(self, batch: DecodeBatch | PrefillBatch) -> None:
        self._batch = batch
        self._planned.clear()
        lengths_B = batch.lengths_B.cpu()
        size = self.cache.page_size
        self._num_pages_B = (lengths_B + size - 1) // size
        self._last_page_B = lengths_B - (self._num_pages_B - 1).clamp(min=0) * size
        self._empty_B = batch.lengths_B == 0 if bool((lengths_B == 0).any()) else None

    def append(self, layer: int, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> None:
        assert self._batch is not None, "append() before plan()"
        self._writer.append(layer, self._batch, k_TKD, v_TKD)

    def prefill(self, layer: int, q_TND: torch.Tensor, scale: float) -> torch.Tensor:
        batch = self._batch
        assert isinstance(batch, PrefillBatch), "prefill() without a planned PrefillBatch"
        if self._planned.get("prefill") != scale:
            self._prefill.plan(
                batch.cu_seqlens_B1.cpu(),
                _offsets(self._num_pages_B),
                self._all_pages(batch.page_table_BW),
                self._last_page_B,
                self.cache.shape.num_heads,
                self.cache.shape.num_kv_heads,
                self.cache.shape.head_dim,
                self.cache.page_size,
                causal=True,
                sm_scale=scale,
                q_data_type=self.cache.dtype,
                kv_data_type=self.cache.dtype,
            )
            self._planned["prefill"] = scale
        cache = self.cache.layers[layer]
        out_TND: torch.Tensor = self._prefill.run(q_TND.contiguous(), (cache.k_PKSD, cache.v_PKSD))
        return out_TND

    def decode(
        self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        batch = self._batch
        assert isinstance(batch, DecodeBatch), "decode() without a planned DecodeBatch"
        cache, q_BND = self.cache.layers[layer], q_BND.contiguous()
        if pages is None:
            out_BND, lse_BN = self._decode_dense(cache, batch, q_BND, scale)
        else:
            out_BND, lse_BN = self._decode_selected(cache, batch, q_BND, pages, scale)
        lse_BN = lse_BN * _LN_2
        if self._empty_B is not None:
            out_BND = out_BND.masked_fill(self._empty_B[:, None, None], 0)
            lse_BN = lse_BN.masked_fill(self._empty_B[:, None], -torch.inf)
        return out_BND, lse_BN

    def _decode_dense(
        self, cache: LayerCache, batch: DecodeBatch, q_BND: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._planned.get("dense") != scale:
            self._dense.plan(
                _offsets(self._num_pages_B),
                self._all_pages(batch.page_table_BW),
                self._last_page_B,
                self.cache.shape.num_heads,
                self.cache.shape.num_kv_heads,
                self.cache.shape.head_dim,
                self.cache.page_size,
                sm_scale=scale,
                q_data_type=self.cache.dtype,
                kv_data_type=self.cache.dtype,
            )
            self._planned["dense"] = scale
        out_BND, lse_BN = self._dense.run(q_BND, (cache.k_PKSD, cache.v_PKSD), return_lse=True)
        return out_BND, lse_BN

    def _decode_selected(
        self, cache: LayerCache, batch: DecodeBatch, q_BND: torch.Tensor, pages: PageSelection, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        B, N, D = q_BND.shape
        K, width = self.cache.shape.num_kv_heads, pages.pages_BKJ.shape[2]
        key = (B, width)
        if key not in self._folded:
            self._folded[key] = _Folded(self._flashinfer, self._workspace, B * K, width)
        folded = self._folded[key]
        if self._planned.get(f"folded {key}") != scale:
            most_B = self._num_pages_B.clamp(max=width)
            folded.plan(most_B.repeat_interleave(K), self._last_page_B.repeat_interleave(K), self.cache, scale)
            self._planned[f"folded {key}"] = scale
        folded.set_pages(pages)
        out_XGD, lse_XG = folded.wrapper.run(
            q_BND.view(B * K, N // K, D),
            (cache.k_PKSD.flatten(0, 1)[:, None], cache.v_PKSD.flatten(0, 1)[:, None]),
            return_lse=True,
        )
        return out_XGD.view(B, N, D), lse_XG.view(B, N)

    def _all_pages(self, page_table_BW: torch.Tensor) -> torch.Tensor:
        exists_BW = torch.arange(page_table_BW.shape[1]) < self._num_pages_B[:, None]
        return page_table_BW[exists_BW.to(page_table_BW.device)]


class _Folded:
    """A decode wrapper whose rows are (sequence, KV head) pairs, planned at the most pages a row may have.

    The rows' true pages are written into its buffers on the device before each run.
    """

    def __init__(self, flashinfer: Any, workspace: torch.Tensor, num_rows: int, width: int) -> None:
        device = workspace.device
        self.offsets = torch.zeros(num_rows + 1, dtype=torch.int32, device=device)
        self.pages = torch.zeros(num_rows * width + 1, dtype=torch.int32, device=device)
        self.wrapper: Any = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            "HND",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=self.offsets,
            paged_kv_indices_buffer=self.pages,
            paged_kv_last_page_len_buffer=torch.zeros(num_rows, dtype=torch.int32, device=device),
            backend="fa2",
        )

    def plan(self, most_X: torch.Tensor, last_page_X: torch.Tensor, cache: PagedKVCache, scale: float) -> None:
        offsets = _offsets(most_X)
        self.wrapper.plan(
            offsets,
            self.pages[: int(offsets[-1])],
            last_page_X,
            cache.shape.group_size,
            1,
            cache.shape.head_dim,
            cache.page_size,
            sm_scale=scale,
            q_data_type=cache.dtype,
            kv_data_type=cache.dtype,
        )

    def set_pages(self, pages: PageSelection) -> None:
        _, K, J = pages.pages_BKJ.shape
        heads_K1 = torch.arange(K, device=self.pages.device, dtype=torch.int32)[:, None]
        folded_XJ = (pages.pages_BKJ * K + heads_K1).flatten(0, 1)
        counts_X = pages.counts_BK.flatten()
        self.offsets[1:] = counts_X.cumsum(0)
        order_J = torch.arange(J, device=self.pages.device)
        spare = self.pages.numel() - 1
        to_XJ = torch.where(order_J < counts_X[:, None], self.offsets[:-1, None] + order_J, spare)
        self.pages.scatter_(0, to_XJ.flatten().long(), folded_XJ.flatten())


def _offsets(counts: torch.Tensor) -> torch.Tensor:
    """int32 ``[len + 1]`` on the CPU: where each row's entries start, then their number."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)
