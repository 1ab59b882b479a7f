"""Appending to the paged cache on a GPU: what the fast backends share."""

from __future__ import annotations

import torch

from sparrow_backends.selectors.gqa_max_softmax import GqaMaxSoftmax
from sparrow_backends.selectors.mean_landmark import MeanLandmark
from sparrow_backends.selectors.quest import Quest
from sparrow_core.cache import DecodeBatch, LayerCache, PagedKVCache, PrefillBatch
from sparrow_core.contracts import PageSelector
from sparrow_kernels.paged_append.naive import decode_slots, filled_pages, prefill_slots
from sparrow_kernels.paged_append.triton import LandmarkKind, decode_append, write_landmarks
from sparrow_kernels.paged_append.triton_prefill import prefill_append

_KERNEL_LANDMARKS: dict[type[PageSelector], LandmarkKind] = {
    MeanLandmark: "mean",
    GqaMaxSoftmax: "mean",
    Quest: "min_max",
}
"""Selectors whose landmarks the append kernels compute; any other selector's own ``landmarks`` is called."""


class PagedWriter:
    """Writes a batch's new keys and values, and the landmarks of pages that this fills."""

    def __init__(self, cache: PagedKVCache, selector: PageSelector) -> None:
        self._layers = cache.layers
        self._page_size = cache.page_size
        self._selector = selector
        self._own_landmarks = bool(selector.landmark_vectors) and type(selector) not in _KERNEL_LANDMARKS
        self.landmark: LandmarkKind = _KERNEL_LANDMARKS.get(type(selector), "none")

    def append(self, layer: int, batch: DecodeBatch | PrefillBatch, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> None:
        cache = self._layers[layer]
        if isinstance(batch, DecodeBatch):
            decode_append(
                k_TKD,
                v_TKD,
                cache.k_PKSD,
                cache.v_PKSD,
                cache.landmarks_PKMD,
                batch.page_table_BW,
                batch.lengths_B,
                self.landmark,
            )
            if self._own_landmarks:
                self._decode_landmarks(cache, batch)
        else:
            prefill_append(
                k_TKD,
                v_TKD,
                cache.k_PKSD,
                cache.v_PKSD,
                cache.landmarks_PKMD,
                batch.cu_seqlens_B1,
                batch.page_table_BW,
                batch.lengths_B,
                self.landmark,
                batch.max_chunk,
            )
            if self._own_landmarks:
                self._prefill_landmarks(cache, batch, len(k_TKD))

    def _decode_landmarks(self, cache: LayerCache, batch: DecodeBatch) -> None:
        """The last page of every row is summarised, full or not, so that no row count is needed on the host."""
        pages_B, _ = decode_slots(batch.lengths_B, batch.page_table_BW, self._page_size)
        keys_BKSD = cache.k_PKSD[pages_B.clamp(min=0)]
        marks_XMD = self._selector.landmarks(keys_BKSD.flatten(0, 1))
        marks_BKMD = marks_XMD.view(*keys_BKSD.shape[:2], *marks_XMD.shape[1:])
        write_landmarks(
            marks_BKMD.contiguous(), cache.landmarks_PKMD, batch.page_table_BW, batch.lengths_B, self._page_size
        )

    def _prefill_landmarks(self, cache: LayerCache, batch: PrefillBatch, num_tokens: int) -> None:
        pages_T, slots_T = prefill_slots(
            batch.cu_seqlens_B1, batch.lengths_B, batch.page_table_BW, num_tokens, self._page_size
        )
        filled_X = filled_pages(pages_T, slots_T, self._page_size)
        marks_XMD = self._selector.landmarks(cache.k_PKSD[filled_X].flatten(0, 1))
        marks_PKMD = cache.landmarks_PKMD
        marks_PKMD[filled_X] = marks_XMD.view(-1, *marks_PKMD.shape[1:]).to(marks_PKMD.dtype)
