"""Exact top-k: pages by the attention they truly receive. Reads every key, so it saves nothing.

Config: ``type: oracle``.

The upper limit that landmark selectors are compared with.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from sparrow_backends.selectors.base import ScoredSelector
from sparrow_core.cache import DecodeBatch, LayerCache
from sparrow_core.contracts import PluginConfig
from sparrow_kernels.page_scores.naive import attention_mass


class Oracle(ScoredSelector):
    """Ranks pages by their exact attention mass, averaged over the heads of the group."""

    class Config(PluginConfig):
        type: str = "oracle"

    landmark_vectors: ClassVar[int] = 0

    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        scale = 1 / math.sqrt(q_BND.shape[2])
        return attention_mass(q_BND, cache.k_PKSD, batch.page_table_BW, batch.lengths_B, scale)
