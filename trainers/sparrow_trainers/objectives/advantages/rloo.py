"""Leave-one-out advantages ("RLOO", arXiv 2402.14740): ``R_i - mean of the group's other rewards``.

Shapes: S sequences.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Advantage, Reduce, ResponseBatch
from sparrow_trainers.objectives.advantages.groups import groups_of


class RlooConfig(PluginConfig):
    type: str = "rloo"


class Rloo(Advantage):
    """``n / (n - 1) * (R - mean of group)`` in a group of n. Raises InputError for a group of one."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = RlooConfig

    def advantages(self, batch: ResponseBatch, reduce: Reduce) -> torch.Tensor:
        groups = groups_of(batch.reward_S, batch.group_S)
        size_S = groups.size_G[groups.index_S]
        alone = (size_S < 2).nonzero()
        if len(alone):
            raise InputError(
                f"group {int(batch.group_S[int(alone[0])])} has 1 sample, and rloo needs another for its baseline; "
                "set rollout.samples_per_prompt to at least 2, or another objective.advantage"
            )
        return (groups.centred(batch.reward_S) * size_S / (size_S - 1)).float()
