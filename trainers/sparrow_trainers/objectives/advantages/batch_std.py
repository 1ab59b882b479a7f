"""Advantages centred by group and scaled by the whole batch: ``(R - mean of group) / (std of batch + eps)``.

A group of nearly equal rewards is not blown up as by its own deviation ("Lite PPO", arXiv 2508.08221; REINFORCE++,
arXiv 2501.03262).

Shapes: S sequences.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Advantage, Reduce, ResponseBatch
from sparrow_trainers.objectives.advantages.groups import groups_of


class BatchStdConfig(PluginConfig):
    type: str = "batch_std"
    std_of: Literal["rewards", "centred"] = Field(
        "rewards", description="deviation of the batch's rewards, or of its rewards less their groups' means"
    )
    eps: float = Field(1e-6, ge=0, allow_inf_nan=False, description="added to the batch's standard deviation")


class BatchStd(Advantage):
    """Population standard deviation over all ranks; exactly 0 in a group whose rewards are all equal."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = BatchStdConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, BatchStdConfig)
        self._std_of, self._eps = config.std_of, config.eps

    def advantages(self, batch: ResponseBatch, reduce: Reduce) -> torch.Tensor:
        groups = groups_of(batch.reward_S, batch.group_S)
        centred_S = groups.centred(batch.reward_S)
        std = _std(batch.reward_S.double() if self._std_of == "rewards" else centred_S, reduce)
        return torch.where(groups.is_flat_S, 0.0, centred_S / (std + self._eps)).float()


def _std(values_S: torch.Tensor, reduce: Reduce) -> torch.Tensor:
    """float64 ``[1]`` over all ranks, in two passes so that a large mean costs no digits."""
    total, count = reduce(torch.stack([values_S.sum(), torch.ones_like(values_S).sum()]))
    mean = total / count.clamp(min=1)
    squared = reduce(((values_S - mean) ** 2).sum().reshape(1))
    variance: torch.Tensor = squared / count.clamp(min=1)
    return variance.sqrt()
