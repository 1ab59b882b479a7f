"""The mean over sequences of each one's mean over its counted tokens: all sequences weigh the same (GRPO).

Shapes: S sequences.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import DenominatorRule, SequenceShares


class SequenceMeanConfig(PluginConfig):
    type: str = "sequence_mean"


class SequenceMean(DenominatorRule):
    """A token's factor is 1 / counted tokens of its sequence; a sequence without any is not among the sequences."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = SequenceMeanConfig

    def shares(self, counted_S: torch.Tensor, max_tokens: int) -> SequenceShares:
        return SequenceShares(factor_S=1.0 / counted_S.clamp(min=1), size_S=(counted_S > 0).double())
