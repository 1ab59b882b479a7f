"""Monotone fits of noisy sequences: tails fall with length, budgets rise with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparrow_core.errors import InputError


def isotonic(values: ArrayLike, weights: ArrayLike | None = None, *, increasing: bool = True) -> NDArray[np.float64]:
    """Least-squares monotone fit of a sequence, ``[n]`` float64, by pooling adjacent violators.

    Args:
        values: ``[n]`` finite numbers.
        weights: ``[n]`` positive weights (token counts, say); equal when None.
        increasing: fit a non-decreasing sequence, else a non-increasing one.

    Raises InputError for values that are not finite or weights that are not positive.
    """
    y = np.asarray(values, dtype=np.float64)
    w = np.ones_like(y) if weights is None else np.asarray(weights, dtype=np.float64)
    if y.ndim != 1 or w.shape != y.shape:
        raise InputError(f"isotonic needs two equally long sequences, not shapes {y.shape} and {w.shape}")
    if not np.isfinite(y).all() or not (w > 0).all():
        raise InputError("isotonic needs finite values and positive weights; drop bins without data first")
    fitted = _pool(y if increasing else -y, w)
    return fitted if increasing else -fitted


def _pool(y: NDArray[np.float64], w: NDArray[np.float64]) -> NDArray[np.float64]:
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(y.tolist(), w.tolist(), strict=True):
        means.append(value)
        masses.append(weight)
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            mass = masses[-2] + masses[-1]
            means[-2] += (means[-1] - means[-2]) * masses[-1] / mass
            masses[-2], sizes[-2] = mass, sizes[-2] + sizes[-1]
            del means[-1], masses[-1], sizes[-1]
    return np.repeat(np.asarray(means, dtype=np.float64), sizes)


def running_max(pages: Sequence[int]) -> tuple[int, ...]:
    """The smallest non-decreasing sequence that is nowhere below ``pages``."""
    return tuple(np.maximum.accumulate(np.asarray(pages, dtype=np.int64)).tolist()) if pages else ()
