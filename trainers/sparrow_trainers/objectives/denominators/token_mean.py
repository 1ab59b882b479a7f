"""The mean over all counted tokens of a minibatch: long sequences weigh more (DAPO).

Shapes: S sequences.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import DenominatorRule, SequenceShares


class TokenMeanConfig(PluginConfig):
    type: str = "token_mean"


class TokenMean(DenominatorRule):
    """Sum over tokens divided by the number of counted tokens of the minibatch, over all ranks."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = TokenMeanConfig

    def shares(self, counted_S: torch.Tensor, max_tokens: int) -> SequenceShares:
        return SequenceShares(factor_S=torch.ones_like(counted_S), size_S=counted_S)
