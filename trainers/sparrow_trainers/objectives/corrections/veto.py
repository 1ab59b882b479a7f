"""Veto of sequences that hold a token which the dense policy would all but never draw."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Correction, Reduce, ResponseBatch, TokenWeights
from sparrow_trainers.objectives.corrections.levels import restricted
from sparrow_trainers.objectives.ratios import mismatch_log_ratio, sum_by_sequence


class VetoConfig(PluginConfig):
    type: str = "veto"
    least: float = Field(1e-4, gt=0, lt=1, description="a sequence with a token of rho below this is rejected")


class Veto(Correction):
    """Rejects all tokens of a sequence in which any drawn token has ``rho = exp(old - rollout) < least``."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = VetoConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, VetoConfig)
        self._least = math.log(config.least)

    def apply(self, batch: ResponseBatch, current: TokenWeights, reduce: Reduce) -> TokenWeights:
        below_T = (mismatch_log_ratio(batch) < self._least).double()
        below_S = sum_by_sequence(below_T, batch.sequence_T, batch.num_sequences)
        return restricted(current, (below_S == 0)[batch.sequence_T])
