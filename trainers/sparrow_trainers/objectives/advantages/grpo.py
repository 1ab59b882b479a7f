"""Group-relative advantages (DeepSeekMath, "GRPO"): ``(R - mean of group) / (std of group + eps)``.

Shapes: S sequences.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Advantage, Reduce, ResponseBatch
from sparrow_trainers.objectives.advantages.groups import groups_of


class GrpoConfig(PluginConfig):
    type: str = "grpo"
    eps: float = Field(1e-6, ge=0, allow_inf_nan=False, description="added to the group's standard deviation")


class Grpo(Advantage):
    """Population standard deviation; exactly 0 in a group whose rewards are all equal, whatever ``eps``."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = GrpoConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, GrpoConfig)
        self._eps = config.eps

    def advantages(self, batch: ResponseBatch, reduce: Reduce) -> torch.Tensor:
        groups = groups_of(batch.reward_S, batch.group_S)
        scaled_S = (batch.reward_S.double() - groups.mean_S) / (groups.std_S + self._eps)
        return torch.where(groups.is_flat_S, 0.0, scaled_S).float()
