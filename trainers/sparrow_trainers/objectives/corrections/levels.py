"""The mismatch ratio rho of a token, of its whole sequence, or the geometric mean of its sequence.

Shapes: S sequences, T tokens.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import ResponseBatch, TokenWeights
from sparrow_trainers.objectives.ratios import bounded_exp, mismatch_log_ratio, sum_by_sequence

Level = Literal["token", "sequence", "geometric"]


def log_ratio_at(batch: ResponseBatch, level: Level) -> torch.Tensor:
    """float64 ``[T]``, not clamped. All drawn tokens of a sequence enter its sum and its mean, rejected ones too."""
    log_rho_T = mismatch_log_ratio(batch)
    if level == "token":
        return log_rho_T
    log_rho_S = sum_by_sequence(log_rho_T, batch.sequence_T, batch.num_sequences)
    if level == "geometric":
        log_rho_S = log_rho_S / batch.lengths_S.clamp(min=1)
    return log_rho_S[batch.sequence_T]


def ratio_at(batch: ResponseBatch, level: Level) -> torch.Tensor:
    """float64 ``[T]``, finite."""
    return bounded_exp(log_ratio_at(batch, level))


def reweighted(current: TokenWeights, factor_T: torch.Tensor) -> TokenWeights:
    return TokenWeights((current.weight_T.double() * factor_T).float(), current.kept_T)


def restricted(current: TokenWeights, kept_T: torch.Tensor) -> TokenWeights:
    """``current`` without the tokens outside ``kept_T``."""
    kept_T = current.kept_T & kept_T
    return TokenWeights(torch.where(kept_T, current.weight_T, 0.0), kept_T)


def banded(current: TokenWeights, batch: ResponseBatch, level: Level, low: float | None, high: float) -> TokenWeights:
    """``current`` without the tokens whose ratio is outside ``[low, high]``."""
    log_rho_T = log_ratio_at(batch, level)
    kept_T = log_rho_T <= math.log(high)
    if low is not None:
        kept_T = kept_T & (log_rho_T >= math.log(low))
    return restricted(current, kept_T)


def check_band(name: str, low: float | None, high: float) -> None:
    """Raises InputError when no ratio is within the band."""
    if low is not None and low >= high:
        raise InputError(f"{name} has low={low} and high={high}; give low < high, usually around 1")
