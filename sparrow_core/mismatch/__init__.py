"""How far the sparse rollout drifts from the dense policy, token by token and by context length."""

from sparrow_core.mismatch.acceptance import (
    acceptance_bounds,
    acceptance_exact,
    acceptance_topk_lower,
    log_softmax_at,
)
from sparrow_core.mismatch.beta import BetaFit, fit_tail_beta
from sparrow_core.mismatch.checks import MismatchError
from sparrow_core.mismatch.noise import NoiseFloor, noise_floor, noise_floor_of
from sparrow_core.mismatch.sketch import TAIL_LIMIT, AcceptanceSketch
from sparrow_core.mismatch.stream import BinStats, MismatchStream, TokenMismatch

__all__ = [
    "TAIL_LIMIT",
    "AcceptanceSketch",
    "BetaFit",
    "BinStats",
    "MismatchError",
    "MismatchStream",
    "NoiseFloor",
    "TokenMismatch",
    "acceptance_bounds",
    "acceptance_exact",
    "acceptance_topk_lower",
    "fit_tail_beta",
    "log_softmax_at",
    "noise_floor",
    "noise_floor_of",
]
