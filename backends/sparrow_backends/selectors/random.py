"""Random middle pages: the control that any useful selector beats.

Config: ``type: random``.

A hash of (seed, layer, KV head, length, logical page), so a run replays exactly and a sequence's pages do not depend on
the batch it is in. Sequences of equal length keep the same logical pages.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_backends.selectors.base import ScoredSelector
from sparrow_core.cache import DecodeBatch, LayerCache
from sparrow_core.contracts import PluginConfig

MASK = 0xFFFFFFFF


class Random(ScoredSelector):
    """Ranks pages by a hash."""

    class Config(PluginConfig):
        type: str = "random"
        seed: int = 0

    landmark_vectors: ClassVar[int] = 0

    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        B, W = batch.page_table_BW.shape
        K, device = cache.k_PKSD.shape[1], q_BND.device
        assert isinstance(self.config, Random.Config)
        hash_BKW = torch.full((B, K, W), self.config.seed & MASK, dtype=torch.int64, device=device)
        hash_BKW = _mix(hash_BKW, torch.tensor(cache.layer, device=device))
        hash_BKW = _mix(hash_BKW, torch.arange(K, device=device)[:, None])
        hash_BKW = _mix(hash_BKW, batch.lengths_B.long()[:, None, None])
        hash_BKW = _mix(hash_BKW, torch.arange(W, device=device))
        return (hash_BKW >> 8).float() / 2**24


def _mix(hash_X: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Fold ``value`` into a 32-bit hash held in int64; products stay below 2^63."""
    mixed_X = ((hash_X ^ value) + 0x9E3779B9) & MASK
    for _ in range(2):
        mixed_X = ((mixed_X ^ (mixed_X >> 16)) * 0x45D9F3B) & MASK
    return mixed_X ^ (mixed_X >> 16)
