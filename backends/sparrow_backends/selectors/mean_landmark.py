"""Mean query of the group against the mean key of the page: ``mean_h(q_h) . mean(k)``.

Config: ``type: mean_landmark``.

The page score of Sparrow (arXiv 2606.08446).
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_backends.selectors.base import ScoredSelector
from sparrow_core.cache import DecodeBatch, LayerCache
from sparrow_core.contracts import PluginConfig
from sparrow_kernels.page_scores.naive import mean_landmark
from sparrow_kernels.paged_attention.naive import math_dtype


class MeanLandmark(ScoredSelector):
    """Ranks pages by the dot product of mean query and mean key."""

    class Config(PluginConfig):
        type: str = "mean_landmark"

    landmark_vectors: ClassVar[int] = 1
    graph_capture: ClassVar[bool] = True
    kernel_score = "mean"

    def landmarks(self, keys_XSD: torch.Tensor) -> torch.Tensor:
        return keys_XSD.to(math_dtype(keys_XSD.dtype)).mean(1, keepdim=True)

    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        return mean_landmark(q_BND, cache.landmarks_PKMD, batch.page_table_BW, batch.lengths_B, cache.page_size)
