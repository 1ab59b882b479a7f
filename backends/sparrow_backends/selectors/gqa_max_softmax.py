"""The largest softmax weight any head of the group gives the page's mean key.

Config: ``type: gqa_max_softmax``.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_backends.selectors.base import ScoredSelector
from sparrow_core.cache import DecodeBatch, LayerCache
from sparrow_core.contracts import PluginConfig
from sparrow_kernels.page_scores.naive import gqa_max_softmax
from sparrow_kernels.paged_attention.naive import math_dtype


class GqaMaxSoftmax(ScoredSelector):
    """Ranks pages by ``max_h softmax_w(q_h . mean(k_w) / sqrt(D))`` over the sequence's full pages."""

    class Config(PluginConfig):
        type: str = "gqa_max_softmax"

    landmark_vectors: ClassVar[int] = 1
    graph_capture: ClassVar[bool] = True

    def landmarks(self, keys_XSD: torch.Tensor) -> torch.Tensor:
        return keys_XSD.to(math_dtype(keys_XSD.dtype)).mean(1, keepdim=True)

    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        return gqa_max_softmax(q_BND, cache.landmarks_PKMD, batch.page_table_BW, batch.lengths_B, cache.page_size)
