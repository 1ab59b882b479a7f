"""Group-centred advantages without a standard deviation ("Dr. GRPO", arXiv 2503.20783): ``R - mean of group``.

Shapes: S sequences.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Advantage, Reduce, ResponseBatch
from sparrow_trainers.objectives.advantages.groups import groups_of


class DrGrpoConfig(PluginConfig):
    type: str = "dr_grpo"


class DrGrpo(Advantage):
    """A prompt weighs by its rewards' spread. The paper pairs it with ``denominator: constant``."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = DrGrpoConfig

    def advantages(self, batch: ResponseBatch, reduce: Reduce) -> torch.Tensor:
        return groups_of(batch.reward_S, batch.group_S).centred(batch.reward_S).float()
