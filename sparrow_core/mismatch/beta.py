"""The tail's shape: acceptances up to 0.999 as a Beta distribution scaled to [0, 0.999].

Most tokens lie above 0.999 and say nothing of the tail, so they are left out (Sparrow, arXiv 2606.08446).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betainc

from sparrow_core.mismatch.checks import require_acceptance
from sparrow_core.mismatch.sketch import TAIL_LIMIT, AcceptanceSketch

MIN_TOKENS = 30
"""Fewer tail tokens than this give no fit."""


@dataclass(frozen=True, slots=True)
class BetaFit:
    """``x / scale ~ Beta(alpha, beta)`` of the tail's acceptances."""

    alpha: float
    beta: float
    variance: float
    """Population variance of the tail's acceptances (not divided by the scale)."""
    ks: float
    """Kolmogorov-Smirnov distance: the largest gap between empirical and fitted distribution functions."""
    tokens: int
    """Tail tokens the fit stands on."""
    scale: float = TAIL_LIMIT


def fit_tail_beta(data: torch.Tensor | AcceptanceSketch, *, min_tokens: int = MIN_TOKENS) -> BetaFit | None:
    """Fit by the method of moments, which tokens at exactly 0 do not upset.

    From a sketch, values stand at their cell's middle (moments off by at most 1/8192 per token) and the
    KS distance is taken at the cells' edges, where the counts are exact.

    Returns None when fewer than ``min_tokens`` tokens are at or below 0.999, or when they are all one value.

    Raises MismatchError on NaN or a value outside [0, 1].
    """
    if isinstance(data, AcceptanceSketch):
        edges, counts = data.tail_counts()
        values, weights = (edges[:-1] + edges[1:]) / 2, counts.astype(np.float64)
    else:
        x = require_acceptance("acceptance", data).flatten().numpy()
        values = np.sort(x[x <= TAIL_LIMIT])
        weights = np.ones_like(values)
    tokens = int(weights.sum())
    if tokens < min_tokens:
        return None
    mean = float(np.average(values, weights=weights))
    variance = float(np.average((values - mean) ** 2, weights=weights))
    shape = _moments(mean / TAIL_LIMIT, variance / TAIL_LIMIT**2)
    if shape is None:
        return None
    alpha, beta = shape
    if isinstance(data, AcceptanceSketch):
        ks = _ks_at_edges(edges, counts, alpha, beta)
    else:
        ks = _ks_of_values(values, alpha, beta)
    return BetaFit(alpha=alpha, beta=beta, variance=variance, ks=ks, tokens=tokens)


def _moments(mean: float, variance: float) -> tuple[float, float] | None:
    """Beta parameters of this mean and variance; None where no Beta distribution has them."""
    if not 0 < mean < 1 or variance <= 1e-18:
        return None
    concentration = mean * (1 - mean) / variance - 1
    if concentration <= 0:
        return None
    return mean * concentration, (1 - mean) * concentration


def _ks_of_values(sorted_values: NDArray[np.float64], alpha: float, beta: float) -> float:
    fitted = betainc(alpha, beta, sorted_values / TAIL_LIMIT)
    count = len(sorted_values)
    above = np.arange(1, count + 1) / count - fitted
    below = fitted - np.arange(count) / count
    return float(max(above.max(), below.max()))


def _ks_at_edges(edges: NDArray[np.float64], counts: NDArray[np.int64], alpha: float, beta: float) -> float:
    empirical = np.cumsum(counts) / counts.sum()
    return float(np.abs(empirical - betainc(alpha, beta, edges[1:] / TAIL_LIMIT)).max())
