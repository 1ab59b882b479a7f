"""A mergeable summary of acceptances: integer counts on a fixed grid over [0, 1].

Adding and merging add integers, so the state is bitwise the same whatever the order of values, batches, streams
or ranks. Quantiles come with a stated bound; counts, the share above 0.999 and the tail's ranks are exact.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from sparrow_core.errors import InputError
from sparrow_core.mismatch.checks import MismatchError, require_acceptance

RESOLUTION = 4096
"""Cells per unit of acceptance; a quantile is known to within 1 / RESOLUTION."""

TAIL_LIMIT = 0.999
"""Tokens above it are as good as identical and are left out of the tail's fit."""

_SUM_SCALE = 1 << 32
"""Values are rounded to multiples of 2^-32 before they are summed as integers."""

_TAIL_CELL = math.floor(TAIL_LIMIT * RESOLUTION)
"""The cell that holds TAIL_LIMIT; it is split there."""

NUM_CELLS = RESOLUTION + 2
"""The grid's cells, one of them split at TAIL_LIMIT, and one that holds 1 alone."""


def _edges() -> NDArray[np.float64]:
    grid = np.arange(RESOLUTION + 1, dtype=np.float64) / RESOLUTION
    return np.concatenate([np.insert(grid, _TAIL_CELL + 1, TAIL_LIMIT), [1.0]])


EDGES = _edges()
"""``[NUM_CELLS + 1]``. Cell i holds EDGES[i] <= x < EDGES[i + 1], but TAIL_LIMIT itself lies below its edge
and the last cell holds exactly 1."""


class AcceptanceSketch:
    """Counts of acceptances on a uniform grid of 4096 cells over [0, 1], split at 0.999; exactly 1 has its own cell.

    The quantile is the lower empirical one: the smallest value x with F(x) >= q. It is monotone in q and does
    not change when the data are duplicated. ``q`` is read as its shortest decimal, so 0.05 of 20 values is the first.
    """

    __slots__ = ("_count", "_counts", "_sum")

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(NUM_CELLS, dtype=np.int64)
        self._count = 0
        self._sum = 0

    def add(self, values: torch.Tensor) -> None:
        """Take in acceptances of any shape. Raises MismatchError on NaN or a value outside [0, 1]."""
        x = require_acceptance("acceptance", values).flatten().numpy()
        cells = np.floor(x * RESOLUTION).astype(np.int64)
        cells += (x > TAIL_LIMIT).astype(np.int64)
        self._counts += np.bincount(cells, minlength=NUM_CELLS)
        self._count += len(x)
        self._sum += int(np.rint(x * _SUM_SCALE).astype(np.int64).sum())

    def merge(self, other: AcceptanceSketch) -> None:
        """Take in all that ``other`` holds; it is left as it was."""
        self._counts += other._counts
        self._count += other._count
        self._sum += other._sum

    def __add__(self, other: AcceptanceSketch) -> AcceptanceSketch:
        merged = AcceptanceSketch()
        merged.merge(self)
        merged.merge(other)
        return merged

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AcceptanceSketch):
            return NotImplemented
        return self._sum == other._sum and bool(np.array_equal(self._counts, other._counts))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"AcceptanceSketch(count={self._count})"

    @property
    def count(self) -> int:
        return self._count

    @property
    def mean(self) -> float:
        """Mean to within 2^-32. Raises MismatchError when empty."""
        self._require_values()
        return self._sum / (self._count * _SUM_SCALE)

    @property
    def fraction_above_0999(self) -> float:
        """Exact share of values > 0.999. Raises MismatchError when empty."""
        self._require_values()
        return int(self._counts[_TAIL_CELL + 1 :].sum()) / self._count

    def quantile(self, q: float) -> float:
        """The lower end of ``quantile_interval``: at most 1 / 4096 below the exact quantile, and never above it."""
        return self.quantile_interval(q)[0]

    def quantile_interval(self, q: float) -> tuple[float, float]:
        """``(lo, hi)`` around the exact lower empirical quantile, with ``hi - lo <= 1 / 4096``.

        Raises InputError for q outside [0, 1] and MismatchError when empty.
        """
        _require_fraction("q", q)
        self._require_values()
        rank = max(1, math.ceil(Fraction(repr(float(q))) * self._count))
        return self._cell_of_rank(rank)

    def tail_confidence(self, q: float, confidence: float = 0.95) -> tuple[float, float]:
        """Interval that holds the true q-quantile with at least this confidence, for independent values.

        Distribution-free, by order statistics: the number of values below the true quantile is Binomial(n, q).
        Ends are widened by the grid. (0, 1) when there are too few values to say more. Tokens of one sequence
        are not independent, so this is the least uncertainty there is.
        """
        _require_fraction("q", q)
        if not 0 < confidence < 1:
            raise InputError(f"confidence={confidence} must lie in (0, 1)")
        miss = (1 - confidence) / 2
        below = int(stats.binom.ppf(miss, self._count, q)) if self._count else 0
        above = int(stats.binom.ppf(1 - miss, self._count, q)) + 1 if self._count else 1
        low = self._cell_of_rank(below)[0] if below >= 1 else 0.0
        high = self._cell_of_rank(above)[1] if above <= self._count else 1.0
        return low, high

    def histogram(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """``(edges [C + 1], counts [C])`` copies; see ``EDGES`` for which edge belongs to which cell."""
        return EDGES.copy(), self._counts.copy()

    def tail_counts(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """``(edges, counts)`` of the values <= 0.999 alone; the last edge is 0.999."""
        return EDGES[: _TAIL_CELL + 2].copy(), self._counts[: _TAIL_CELL + 1].copy()

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state: the cells that hold values and their counts, and the integer sum."""
        cells = np.flatnonzero(self._counts)
        return {
            "resolution": RESOLUTION,
            "cells": cells.tolist(),
            "counts": self._counts[cells].tolist(),
            "sum": self._sum,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> AcceptanceSketch:
        """Raises InputError when the state is of another grid or damaged."""
        if state.get("resolution") != RESOLUTION:
            raise InputError(f"sketch.resolution={state.get('resolution')} cannot be read; it must be {RESOLUTION}")
        sketch = cls()
        try:
            cells = np.asarray(state["cells"], dtype=np.int64)
            counts = np.asarray(state["counts"], dtype=np.int64)
            sketch._sum = int(state["sum"])
        except KeyError as error:
            raise InputError(f"sketch state lacks {error}; it must come from state_dict()") from error
        in_range = bool(((cells >= 0) & (cells < NUM_CELLS)).all()) and bool((counts > 0).all())
        if cells.shape != counts.shape or len(np.unique(cells)) != len(cells) or not in_range:
            raise InputError("sketch state is damaged: cells and counts must pair distinct cells with positive counts")
        sketch._counts[cells] = counts
        sketch._count = int(counts.sum())
        return sketch

    def _cell_of_rank(self, rank: int) -> tuple[float, float]:
        """Edges of the cell that holds the ``rank``-th smallest value, counted from 1."""
        cell = int(np.searchsorted(np.cumsum(self._counts), rank))
        return float(EDGES[cell]), float(EDGES[cell + 1])

    def _require_values(self) -> None:
        if not self._count:
            raise MismatchError("the sketch holds no values yet; add some before asking for a statistic")


def _require_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{name}={value} must lie in [0, 1]")
