"""Reading a mismatch stream: each bin's tail with its confidence interval, after checks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparrow_core.errors import InputError
from sparrow_core.mismatch import AcceptanceSketch, MismatchStream
from sparrow_core.mismatch.stream import Kind


@dataclass(frozen=True, slots=True)
class TailReading:
    """The tail of one length bin, as one observation or several together show it."""

    tokens: int
    tail: float
    low: float
    """Lower confidence bound of the tail, from order statistics."""
    high: float

    def pooled(self, newer: TailReading, most_tokens: int) -> TailReading:
        """Both readings as one, weighted by tokens; this one counts for ``most_tokens`` at most.

        Averages quantiles of independent samples, so the interval's halves shrink as a standard error does.
        """
        mine = min(self.tokens, most_tokens)
        total = mine + newer.tokens
        tail = (mine * self.tail + newer.tokens * newer.tail) / total
        below = math.hypot(mine * (self.tail - self.low), newer.tokens * (newer.tail - newer.low)) / total
        above = math.hypot(mine * (self.high - self.tail), newer.tokens * (newer.high - newer.tail)) / total
        return TailReading(total, tail, max(tail - below, 0.0), min(tail + above, 1.0))

    def contradicts(self, other: TailReading) -> bool:
        """The intervals are disjoint: the model, or what it was measured on, has changed."""
        return self.low > other.high or self.high < other.low


@dataclass(frozen=True, slots=True)
class StreamShape:
    """The bins and quantile a policy was configured for."""

    bin_tokens: int
    num_bins: int
    quantile: float

    def check(self, stream: MismatchStream, policy: str) -> None:
        """Raises InputError when ``stream`` has other bins or another quantile."""
        for name in ("bin_tokens", "num_bins", "quantile"):
            mine, theirs = getattr(self, name), getattr(stream, name)
            if mine != theirs:
                raise InputError(
                    f"policy {policy} has {name}={mine} but the mismatch stream has {name}={theirs}; "
                    f"set policy.{name}={theirs} or build the stream with {name}={mine}"
                )


def read_tail(sketch: AcceptanceSketch, quantile: float, confidence: float) -> TailReading:
    """The tail a sketch of at least one token shows."""
    low, high = sketch.tail_confidence(quantile, confidence)
    below, above = sketch.quantile_interval(quantile)
    return TailReading(sketch.count, (below + above) / 2, low, high)


def bin_sketch(stream: MismatchStream, index: int, kind: Kind) -> AcceptanceSketch:
    """The bin's acceptances of one kind. Raises InputError when exact ones are asked for but not all known."""
    sketch = stream.sketch(index, kind)
    if kind == "exact" and sketch.count != stream.bin(index).tokens:
        raise InputError(
            f"policy.acceptance='exact' but bin {index} has exact acceptances for {sketch.count} of "
            f"{stream.bin(index).tokens} tokens; keep hidden states in the rollout or set policy.acceptance='lower'"
        )
    return sketch


def bin_budget(stream: MismatchStream, index: int, scheduled: int, page_size: int) -> int:
    """``scheduled`` pages, capped at all pages of the bin's longest context."""
    hi = stream.bin(index).hi
    return scheduled if hi is None else min(scheduled, -(-hi // page_size))


def drawn_under(stream: MismatchStream, index: int, scheduled: int, page_size: int) -> bool:
    """Whether ``scheduled`` pages explain the mean pages of a bin that has tokens.

    The stream counts pages capped at those a sequence has. An asynchronous rollout, say, follows an older schedule.
    """
    stats = stream.bin(index)
    assert stats.pages_mean is not None
    shortest = min(scheduled, -(-max(stats.lo, 1) // page_size))
    return shortest - 1e-9 <= stats.pages_mean <= bin_budget(stream, index, scheduled, page_size) + 1e-9


def observed_pages(stream: MismatchStream, index: int, scheduled: int, page_size: int) -> float:
    """The budget a bin's tokens were drawn under: the scheduled one if it explains them, else their mean."""
    if drawn_under(stream, index, scheduled, page_size):
        return float(bin_budget(stream, index, scheduled, page_size))
    mean = stream.bin(index).pages_mean
    assert mean is not None
    return mean
