"""Tails of acceptance per (configuration, length bin), with bootstrap intervals over prompts.

Tokens of one response are correlated, so the bootstrap resamples whole prompts, never single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sparrow_core.schedule import length_bin


@dataclass(frozen=True, slots=True)
class CellTokens:
    """Scored tokens of one configuration: parallel arrays, one entry per drawn token."""

    prompts_T: np.ndarray
    lengths_T: np.ndarray
    acceptance_T: np.ndarray
    attended_T: np.ndarray


@dataclass(frozen=True, slots=True)
class BinTail:
    """The tail of one configuration in one length bin; ``tail`` is None where there are too few tokens."""

    lo: int
    hi: int | None
    tokens: int
    prompts: int
    tail: float | None
    interval: tuple[float, float] | None
    mean: float | None
    kept_fraction: float | None


def lower_quantile(values: np.ndarray, quantile: float) -> float:
    """Smallest value x whose share of values <= x is at least ``quantile``."""
    index = max(int(np.ceil(quantile * len(values))) - 1, 0)
    return float(np.partition(values, index)[index])


def bin_tails(
    cell: CellTokens,
    *,
    bin_tokens: int,
    num_bins: int,
    quantile: float,
    min_tokens: int,
    confidence: float,
    resamples: int,
    seed: int,
) -> list[BinTail]:
    """Tail, interval, mean and kept share of every bin of one configuration."""
    bins_T = length_bin(torch.from_numpy(cell.lengths_T), bin_tokens, num_bins).numpy()
    out = []
    for index in range(num_bins):
        rows = bins_T == index
        values, prompts = cell.acceptance_T[rows], cell.prompts_T[rows]
        enough = len(values) >= min_tokens
        out.append(
            BinTail(
                lo=index * bin_tokens,
                hi=None if index == num_bins - 1 else (index + 1) * bin_tokens,
                tokens=len(values),
                prompts=len(np.unique(prompts)),
                tail=lower_quantile(values, quantile) if enough else None,
                interval=bootstrap_interval(values, prompts, quantile, confidence, resamples, [seed, index])
                if enough
                else None,
                mean=float(values.mean()) if enough else None,
                kept_fraction=float(cell.attended_T[rows].sum() / cell.lengths_T[rows].sum()) if enough else None,
            )
        )
    return out


def bootstrap_interval(
    values: np.ndarray,
    prompts: np.ndarray,
    quantile: float,
    confidence: float,
    resamples: int,
    seed: Sequence[int],
) -> tuple[float, float]:
    """Percentile bootstrap interval of the lower quantile, resampling prompts with replacement."""
    rng = np.random.default_rng(list(seed))
    groups = [values[prompts == p] for p in np.unique(prompts)]
    draws = rng.integers(0, len(groups), size=(resamples, len(groups)))
    tails = [lower_quantile(np.concatenate([groups[g] for g in draw]), quantile) for draw in draws]
    low, high = np.quantile(tails, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
