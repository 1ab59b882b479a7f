"""Quest: an upper bound of any token's score, from the minimum and maximum of the page's keys.

Config: ``type: quest``.

From "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference" (arXiv 2406.10774); here the best head of a
GQA group decides.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_backends.selectors.base import ScoredSelector
from sparrow_core.cache import DecodeBatch, LayerCache
from sparrow_core.contracts import PluginConfig
from sparrow_kernels.page_scores.naive import quest
from sparrow_kernels.paged_attention.naive import math_dtype


class Quest(ScoredSelector):
    """Ranks pages by ``max_h sum_d max(q_hd kmin_d, q_hd kmax_d)``."""

    class Config(PluginConfig):
        type: str = "quest"

    landmark_vectors: ClassVar[int] = 2
    graph_capture: ClassVar[bool] = True
    kernel_score = "quest"

    def landmarks(self, keys_XSD: torch.Tensor) -> torch.Tensor:
        low_XD, high_XD = keys_XSD.to(math_dtype(keys_XSD.dtype)).aminmax(dim=1)
        return torch.stack([low_XD, high_XD], dim=1)

    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        return quest(q_BND, cache.landmarks_PKMD, batch.page_table_BW, batch.lengths_B, cache.page_size)
