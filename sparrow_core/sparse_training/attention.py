"""One sparse layer over packed sequences, with gradients: keys laid out in pages, then chunk by chunk of queries.

Nothing of a chunk outlives it: the backward pass lays out the pages, selects and weighs again from the saved queries,
keys, values, outputs and LSEs, so memory is linear in the number of tokens. The page sets are constants: no gradient
flows through scores or landmarks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sparrow_core.cache import DecodeBatch, LayerCache, PageSelection
from sparrow_core.contracts import PageSelector
from sparrow_core.sparse_training.plan import TrainingPlan


class SparseKernels(Protocol):
    """``sparrow_kernels.sparse_training.gather`` or ``.triton``."""

    def forward(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]: ...

    def backward(self, *args: Any) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class SparseLayer:
    """What one layer's call needs beside its tensors."""

    layer: int
    plan: TrainingPlan
    selector: PageSelector
    kernels: SparseKernels
    scale: float
    max_elements: int
    """Bounds a chunk's scratch space."""
    gathers: bool
    """Whether a chunk's selected keys, or landmarks, are gathered in memory."""

    def pages(self, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> LayerCache:
        k_PKSD, v_PKSD = (self._paged(x) for x in (k_TKD, v_TKD))
        marks = self.selector.landmarks(k_PKSD.flatten(0, 1)).to(k_PKSD.dtype)
        return LayerCache(self.layer, k_PKSD, v_PKSD, marks.view(*k_PKSD.shape[:2], -1, k_PKSD.shape[3]))

    def _paged(self, x_TKD: torch.Tensor) -> torch.Tensor:
        size, pages = self.plan.page_size, self.plan.num_pages
        pool = x_TKD.new_zeros(pages * size, *x_TKD.shape[1:]).index_copy_(0, self.plan.slot_T, x_TKD)
        return pool.view(pages, size, *x_TKD.shape[1:]).transpose(1, 2).contiguous()

    def from_pages(self, pool_PKSD: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``[T, K, D]``."""
        return pool_PKSD.transpose(1, 2).flatten(0, 1)[self.plan.slot_T].to(dtype)

    def selected(self, q_RND: torch.Tensor, cache: LayerCache) -> Iterator[tuple[slice, PageSelection, DecodeBatch]]:
        """Rows, pages and batch of every chunk."""
        _, K, S, D = cache.k_PKSD.shape
        per_page = K * D * max(1, cache.landmarks_PKMD.shape[2], S) if self.gathers else 4 * K
        for chunk in self.plan.chunks(per_page, self.max_elements):
            rows, batch = slice(chunk.start, chunk.end), self.plan.batch(chunk)
            yield rows, self.selector.select(q_RND[rows], cache, batch), batch


def sparse_attention(q_RND: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor, layer: SparseLayer) -> torch.Tensor:
    """Attention ``[R, N, D]`` of the plan's sparse tokens, given their queries and all tokens' keys and values."""
    out_RND: torch.Tensor = _SparseAttention.apply(q_RND, k_TKD, v_TKD, layer)  # type: ignore[no-untyped-call]
    return out_RND


class _SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_RND: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor, layer: SparseLayer
    ) -> torch.Tensor:
        cache = layer.pages(k_TKD, v_TKD)
        outs, lses = [], []
        for rows, pages, batch in layer.selected(q_RND, cache):
            out, lse = layer.kernels.forward(
                q_RND[rows], cache.k_PKSD, cache.v_PKSD, pages.pages_BKJ, pages.counts_BK, batch.lengths_B, layer.scale
            )
            outs.append(out)
            lses.append(lse)
        out_RND, lse_RN = torch.cat(outs), torch.cat(lses)
        ctx.save_for_backward(q_RND, k_TKD, v_TKD, out_RND, lse_RN)
        ctx.layer = layer
        return out_RND

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        (grad_RND,) = grads
        q_RND, k_TKD, v_TKD, out_RND, lse_RN = ctx.saved_tensors
        layer: SparseLayer = ctx.layer
        cache = layer.pages(k_TKD, v_TKD)
        wide = torch.promote_types(k_TKD.dtype, torch.float32)
        grad_k_PKSD, grad_v_PKSD = (torch.zeros_like(x, dtype=wide) for x in (cache.k_PKSD, cache.v_PKSD))
        grad_q_RND = torch.empty_like(q_RND)
        for rows, pages, batch in layer.selected(q_RND, cache):
            grad_q_RND[rows] = layer.kernels.backward(
                grad_RND[rows], q_RND[rows], cache.k_PKSD, cache.v_PKSD, out_RND[rows], lse_RN[rows],
                pages.pages_BKJ, pages.counts_BK, batch.lengths_B, layer.scale, grad_k_PKSD, grad_v_PKSD,
            )  # fmt: skip
        grad_k_TKD, grad_v_TKD = (layer.from_pages(x, k_TKD.dtype) for x in (grad_k_PKSD, grad_v_PKSD))
        return grad_q_RND, grad_k_TKD, grad_v_TKD, None
