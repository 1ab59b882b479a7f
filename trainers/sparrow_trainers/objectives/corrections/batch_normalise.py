"""Weights divided by their mean over the batch, so that a correction does not change the size of the update."""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Correction, Reduce, ResponseBatch, TokenWeights
from sparrow_trainers.objectives.corrections.levels import reweighted


class BatchNormaliseConfig(PluginConfig):
    type: str = "batch_normalise"


class BatchNormalise(Correction):
    """Kept tokens of all ranks get a mean weight of 1. Comes after the parts that weigh; none is kept, none changes."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = BatchNormaliseConfig

    def apply(self, batch: ResponseBatch, current: TokenWeights, reduce: Reduce) -> TokenWeights:
        kept_T = current.kept_T
        weight_T = torch.where(kept_T, current.weight_T.double(), 0.0)
        total, count = reduce(torch.stack([weight_T.sum(), kept_T.double().sum()])).tolist()
        if total == 0:
            return current
        return reweighted(current, torch.full_like(weight_T, count / total))
