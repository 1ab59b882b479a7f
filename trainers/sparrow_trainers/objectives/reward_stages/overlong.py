"""Soft punishment of overlong responses (DAPO, arXiv 2503.14476): nothing, then a linear fall, then -1.

Shapes: S sequences.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import ResponseBatch, RewardStage


class OverlongConfig(PluginConfig):
    type: str = "overlong"
    max_length: int | None = Field(None, ge=1, description="L, tokens of full punishment; null: rollout.max_tokens")
    cache: int | None = Field(None, ge=1, description="last tokens before L, of rising punishment; null: a fifth of L")
    scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="size of the full punishment")


class Overlong(RewardStage):
    """Adds ``scale * clamp((L - cache - length) / cache, -1, 0)`` to each reward."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = OverlongConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, OverlongConfig)
        self._max_length, self._cache, self._scale = config.max_length, config.cache, config.scale

    def shape(self, batch: ResponseBatch) -> torch.Tensor:
        limit = batch.max_tokens if self._max_length is None else self._max_length
        cache = max(1, limit // 5) if self._cache is None else self._cache
        if cache > limit:
            raise InputError(f"overlong has cache={cache} tokens before max_length={limit}; give at most {limit}")
        punishment_S = ((limit - cache - batch.lengths_S.double()) / cache).clamp(-1, 0)
        return (batch.reward_S.double() + self._scale * punishment_S).float()
