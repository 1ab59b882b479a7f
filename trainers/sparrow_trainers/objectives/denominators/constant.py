"""A constant per sequence: no token weighs more or less for the length of its sequence (Dr. GRPO, arXiv 2503.20783).

Shapes: S sequences.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import DenominatorRule, SequenceShares


class ConstantConfig(PluginConfig):
    type: str = "constant"
    tokens: int | None = Field(None, ge=1, description="what a sequence counts for; null takes rollout.max_tokens")


class Constant(DenominatorRule):
    """Sum over tokens divided by ``tokens`` times the sequences that have a counted token."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = ConstantConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, ConstantConfig)
        self._tokens = config.tokens

    def shares(self, counted_S: torch.Tensor, max_tokens: int) -> SequenceShares:
        tokens = max_tokens if self._tokens is None else self._tokens
        return SequenceShares(factor_S=torch.ones_like(counted_S), size_S=(counted_S > 0).double() * tokens)
