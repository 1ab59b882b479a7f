"""How one length bin's tail depends on its budget, from decayed evidence, and the budget to use next.

Published budgets at one length follow a power law: 1 - tail falls as pages^-0.7 (Qwen3-1.7B at 19K tokens: 96, 160,
256, 384, 768 pages for tails of 0.75, 0.80, 0.86, 0.90, 0.94). So with x = log2(pages) and y = ln(1 - tail), an
observation (x_i, y_i) with standard error s_i says of another budget

    y(x) = y_i - slope (x - x_i)      with variance  s_i^2 + (slope_error (x - x_i))^2

and observations are averaged with weight_i / variance. Far observations count for little, and two near ones
on either side of tau pin the answer between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparrow_policies._tail import TailReading

SLOPE = 0.7 * math.log(2)
"""Fall of ln(1 - tail) per doubling of pages."""
SLOPE_ERROR = 0.2
_LEAST_ERROR = 0.02
"""Standard error of y that no number of tokens gets below: the model itself is not more exact."""
_LEAST_LOSS = 1e-3
"""1 - tail below this is as good as dense."""
_KEPT = 32
"""Observations remembered per bin."""
_SURPRISE = 3.0
"""An observation this many standard errors off the prediction means that the model changed."""
_ANY_SLOPE_ERROR = 0.6
"""Standard error of the slope in that comparison: an unusual slope is not a change."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rule:
    """When a budget moves, and how far."""

    tau: float
    margin: float
    confidence: float
    half_life_tokens: float
    max_raise: float
    """Largest raise in one observation, in doublings."""
    max_lower: float

    @property
    def z(self) -> float:
        return NormalDist().inv_cdf((1 + self.confidence) / 2)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation of a bin, in the coordinates of the module's docstring."""

    x: float
    y: float
    error: float
    weight: float


@dataclass(frozen=True, slots=True)
class BinModel:
    """What one bin has shown so far, newest last. Immutable: ``updated`` gives the next one."""

    evidence: tuple[Evidence, ...] = ()

    def updated(self, reading: TailReading, pages: float, rule: Rule) -> BinModel:
        """With one more observation; older ones fade by its tokens, and are dropped when it contradicts them.

        Smaller budgets that lost more than the power law gives from the new one stay all the same: they speak of a
        steeper slope, as there is near all pages, where the loss falls to nothing. Forgetting such a failure would
        send the bin back to it at once.
        """
        new = Evidence(math.log2(pages), _log_loss(reading.tail), _error(reading, rule.z), 1.0)
        old = list(self.evidence)
        if old:
            mean, error = self.predict(np.array([new.x]), _ANY_SLOPE_ERROR)
            if abs(new.y - mean[0]) > _SURPRISE * math.hypot(new.error, error[0]):
                old = [e for e in old if e.x < new.x and e.y > new.y + SLOPE * (new.x - e.x)]
        fade = 2.0 ** (-reading.tokens / rule.half_life_tokens)
        old = [replace(e, weight=e.weight * fade) for e in old]
        return BinModel((*old[-(_KEPT - 1) :], new))

    def predict(self, x: _Floats, slope_error: float = SLOPE_ERROR) -> tuple[_Floats, _Floats]:
        """Mean and standard error of y at each of ``x``, ``[n]`` each. Needs evidence."""
        xs, ys, errors, weights = np.array([(e.x, e.y, e.error, e.weight) for e in self.evidence]).T
        distance = x[:, None] - xs
        precision = weights / (errors**2 + (slope_error * distance) ** 2)
        total = precision.sum(axis=1)
        mean = (precision * (ys - SLOPE * distance)).sum(axis=1) / total
        return mean, 1 / np.sqrt(total)

    def tail_interval(self, pages: float, rule: Rule) -> tuple[float, float]:
        """Confidence interval of the tail under ``pages``."""
        mean, error = self.predict(np.array([math.log2(pages)]))
        return 1 - math.exp(mean[0] + rule.z * error[0]), 1 - math.exp(mean[0] - rule.z * error[0])

    def state(self) -> list[list[float]]:
        return [[e.x, e.y, e.error, e.weight] for e in self.evidence]

    @classmethod
    def from_state(cls, rows: list[Any]) -> BinModel:
        return cls(tuple(Evidence(*map(float, row)) for row in rows))


def next_pages(model: BinModel, latest: TailReading | None, pages: int, allowed: NDArray[np.int64], rule: Rule) -> int:
    """The bin's next budget, one of ``allowed`` (ascending), given its present one.

    Raised at once when the tail is confidently below tau: by the pooled evidence or by ``latest`` alone, a reading
    taken at no less than the present budget. Lowered only when the pooled lower bound exceeds tau + margin.
    """
    low, high = model.tail_interval(pages, rule)
    if high < rule.tau or (latest is not None and latest.high < rule.tau):
        return _raised(model, pages, allowed, rule)
    if low > rule.tau + rule.margin:
        return _lowered(model, pages, allowed, rule)
    return pages


def _raised(model: BinModel, pages: int, allowed: NDArray[np.int64], rule: Rule) -> int:
    """The smallest larger budget that is expected to meet tau with half the margin."""
    larger = allowed[allowed > pages]
    if not len(larger):
        return pages
    options = larger[larger <= max(pages * 2**rule.max_raise, larger[0])]
    mean, _ = model.predict(np.log2(options))
    enough = options[mean <= math.log(1 - rule.tau - rule.margin / 2)]
    return int(enough[0] if len(enough) else options[-1])


def _lowered(model: BinModel, pages: int, allowed: NDArray[np.int64], rule: Rule) -> int:
    """The smallest smaller budget that is likely (one standard error) to meet tau."""
    options = allowed[(allowed < pages) & (allowed >= pages / 2**rule.max_lower)]
    if not len(options):
        return pages
    mean, error = model.predict(np.log2(options))
    # From the present budget downwards, so that a gap in what is known is not jumped.
    doubtful = np.flatnonzero(mean + error > math.log(1 - rule.tau))
    first = doubtful[-1] + 1 if len(doubtful) else 0
    return int(options[first]) if first < len(options) else pages


def _log_loss(tail: float) -> float:
    return math.log(max(1 - tail, _LEAST_LOSS))


def _error(reading: TailReading, z: float) -> float:
    return max((_log_loss(reading.low) - _log_loss(reading.high)) / (2 * z), _LEAST_ERROR)
