"""Sinks and a window of the most recent pages; what the query says does not matter.

Config: ``type: window``.

From "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453).
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_backends.selectors.base import ScoredSelector
from sparrow_core.cache import DecodeBatch, LayerCache
from sparrow_core.contracts import PluginConfig


class Window(ScoredSelector):
    """Ranks pages by their position, the latest first."""

    class Config(PluginConfig):
        type: str = "window"

    landmark_vectors: ClassVar[int] = 0
    graph_capture: ClassVar[bool] = True

    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        B, W = batch.page_table_BW.shape
        recency_W = torch.arange(W, dtype=torch.float32, device=q_BND.device)
        return recency_W.expand(B, cache.k_PKSD.shape[1], W)
