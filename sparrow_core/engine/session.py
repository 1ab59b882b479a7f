"""The model's attention during a rollout: append, select, decode, layer by layer."""

from __future__ import annotations

import torch

from sparrow_core.cache import DecodeBatch, PagedKVCache, PrefillBatch
from sparrow_core.contracts import AttentionBackend, PageSelector, SparseLayout


class RolloutSession:
    """Bound to the model while it generates; the engine calls ``begin`` before every forward."""

    def __init__(
        self, backend: AttentionBackend, selector: PageSelector, cache: PagedKVCache, layout: SparseLayout
    ) -> None:
        self.backend = backend
        self.selector = selector
        self.cache = cache
        self.dense_layers = frozenset(layout.dense_layers)
        self._batch: DecodeBatch | PrefillBatch | None = None
        self._all_dense = True

    def begin(self, batch: DecodeBatch | PrefillBatch, *, all_dense: bool) -> None:
        """Plan the next forward. ``all_dense``: no row's budget is below its pages, so nothing is selected."""
        self._batch = batch
        self._all_dense = all_dense
        self.backend.plan(batch)

    def attend(
        self, layer: int, q_BLNH: torch.Tensor, k_BLNH: torch.Tensor, v_BLNH: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of one layer, ``[B, L, N, H]``: packed ``[1, T]`` in prefill, ``[B, 1]`` in decode."""
        assert self._batch is not None, "begin() was not called"
        self.backend.append(layer, k_BLNH.flatten(0, 1), v_BLNH.flatten(0, 1))
        q_TND = q_BLNH.flatten(0, 1)
        if isinstance(self._batch, PrefillBatch):
            out_TND = self.backend.prefill(layer, q_TND, scale)
        else:
            pages = None
            if not self._all_dense and layer not in self.dense_layers:
                pages = self.selector.select(q_TND, self.cache.layers[layer], self._batch)
            out_TND, _ = self.backend.decode(layer, q_TND, pages, scale)
        return out_TND.view(q_BLNH.shape)
