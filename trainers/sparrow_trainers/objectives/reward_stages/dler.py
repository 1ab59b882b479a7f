"""DLER's truncation rule (arXiv 2510.15110): a response that was cut gets a fixed reward, whatever it said.

Shapes: S sequences.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import ResponseBatch, RewardStage


class DlerConfig(PluginConfig):
    type: str = "dler"
    reward: float = Field(0.0, allow_inf_nan=False, description="of a truncated response")
    max_length: int | None = Field(None, ge=1, description="a longer response counts as truncated; null sets no limit")


class Dler(RewardStage):
    """Truncated by ``rollout.max_tokens`` or the context, or longer than ``max_length``. Others keep their reward."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = DlerConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, DlerConfig)
        self._reward, self._max_length = config.reward, config.max_length

    def shape(self, batch: ResponseBatch) -> torch.Tensor:
        cut_S = batch.truncated_S
        if self._max_length is not None:
            cut_S = cut_S | (batch.lengths_S > self._max_length)
        return torch.where(cut_S, self._reward, batch.reward_S)
