"""The mismatch a schedule would have met, from tokens recorded under other budgets.

In each length bin the budget asked for lies between two measured ones, m1 <= b <= m2. The quantile function of the
acceptance is interpolated between theirs, linearly in the logarithm of the pages:

    Q_b(u) = (1 - w) Q_m1(u) + w Q_m2(u),    w = ln(b / m1) / ln(m2 / m1)

so a measured budget gives exactly its own tokens. Outside the measured range the nearest measured budget stands in,
and the prediction says so: above it the tail is understated, below it overstated. Pages and attended tokens are always
those of the budget asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream, TokenMismatch
from sparrow_core.mismatch.stream import KINDS, Kind
from sparrow_core.replay.recordings import RecordedTokens, Recordings, merged
from sparrow_core.schedule import BudgetSchedule

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bins:
    """The length bins and the quantile of the streams that policies observe."""

    bin_tokens: int
    num_bins: int
    quantile: float

    def span(self, index: int) -> tuple[int, int | None]:
        """First length of the bin, and the first past it; None for the last, open one."""
        hi = None if index == self.num_bins - 1 else (index + 1) * self.bin_tokens
        return index * self.bin_tokens, hi


@dataclass(frozen=True, slots=True)
class Outside:
    """A budget asked for that no measured ones enclose; ``used`` stood in for it."""

    bin: int
    asked: int
    """Capped at all pages of the bin's longest recorded context."""
    used: int


@dataclass(frozen=True, slots=True)
class Prediction:
    stream: MismatchStream
    outside: tuple[Outside, ...]


@dataclass(frozen=True, slots=True)
class Draw:
    """Tokens to draw per bin, with replacement; equal seeds draw equal ranks whatever the budget."""

    tokens_per_bin: int
    seed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Segment:
    lo: int
    hi: int | None
    pages: int


class Predictor:
    """Streams for any schedule, from recordings.

    Raises InputError when a rollout's tokens of one bin were drawn under several budgets.
    """

    def __init__(self, recordings: Recordings, bins: Bins) -> None:
        self.bins = bins
        self._recordings = recordings
        self._page_size = recordings.meta.page_size
        self._kinds: list[Kind] = [kind for kind in KINDS if kind != "exact" or recordings.has_exact]
        parts = [[r.between(*bins.span(index)) for r in recordings.rollouts] for index in range(bins.num_bins)]
        self._caps = [max([0, *(self._num_pages(p.lengths_T).max(initial=0) for p in row)]) for row in parts]
        self._measured = [self._by_budget(index, row) for index, row in enumerate(parts)]
        self.context = np.array([sum(int(p.lengths_T.sum()) for p in row) for row in parts])
        """``[num_bins]`` sum of the recorded tokens' context lengths: how much a bin weighs in the kept fraction."""

    def budgets(self, index: int) -> tuple[int, ...]:
        """Measured budgets of a bin, ascending; one that covers every context is listed as its full pages."""
        return tuple(sorted(self._measured[index]))

    def predict(self, schedule: BudgetSchedule, draw: Draw | None = None) -> Prediction:
        """The stream of a rollout under ``schedule``: all recorded tokens, or a draw of them.

        Raises InputError when only one budget was recorded and another is asked for.
        """
        bins = self.bins
        stream = MismatchStream(bin_tokens=bins.bin_tokens, num_bins=bins.num_bins, quantile=bins.quantile)
        outside: dict[Outside, None] = {}
        for index in range(bins.num_bins):
            segments = [s for s in _segments(schedule, *bins.span(index)) if self._count(index, s)]
            rng, counts = self._draws(index, segments, draw)
            for segment, count in zip(segments, counts, strict=True):
                if count == 0:
                    continue
                low, high, weight, stand_in = self._enclosing(index, segment)
                if stand_in is not None:
                    outside[stand_in] = None
                stream.observe(self._interpolated(low, high, weight, segment.pages, rng, count))
        return Prediction(stream, tuple(outside))

    def lengths(self, most: int | None = None) -> _Ints:
        """Recorded context lengths, ascending; at most ``most`` of them, evenly spread over the tokens."""
        lengths_T = np.sort(np.concatenate([r.lengths_T for r in self._recordings.rollouts]))
        if most is None or len(lengths_T) <= most:
            return lengths_T
        return lengths_T[((np.arange(most) + 0.5) / most * len(lengths_T)).astype(np.int64)]

    def _by_budget(self, index: int, parts: Sequence[RecordedTokens]) -> dict[int, RecordedTokens]:
        found: dict[int, RecordedTokens] = {}
        for part in parts:
            if not len(part.lengths_T):
                continue
            budget = self._budget_of(index, part)
            if budget not in found:
                found[budget] = part
            elif not part.is_grid:
                found[budget] = merged([found[budget], part])
        return found

    def _budget_of(self, index: int, part: RecordedTokens) -> int:
        is_sparse_T = part.pages_T < self._num_pages(part.lengths_T)
        budgets = np.unique(part.pages_T[is_sparse_T]).tolist()
        if len(budgets) > 1:
            lo, hi = self.bins.span(index)
            raise InputError(
                f"{self._recordings.source!r} holds a rollout with several budgets ({', '.join(map(str, budgets))} "
                f"pages) at contexts of {lo} to {'more' if hi is None else hi - 1} tokens; replay with the bins it was "
                "recorded with (bin_tokens, num_bins), or replay a calibration"
            )
        return int(budgets[0]) if budgets else int(self._caps[index])

    def _num_pages(self, lengths_T: _Ints) -> _Ints:
        return -(-lengths_T // self._page_size)

    def _count(self, index: int, segment: _Segment) -> int:
        parts = [part.between(segment.lo, segment.hi) for part in self._measured[index].values()]
        return max((len(part.lengths_T) for part in parts), default=0)

    def _draws(
        self, index: int, segments: list[_Segment], draw: Draw | None
    ) -> tuple[np.random.Generator | None, list[int | None]]:
        """A generator and tokens per segment; None and Nones when all tokens are taken."""
        if draw is None or not segments:
            return None, [None] * len(segments)
        rng = np.random.default_rng([*draw.seed, index])
        weights = np.array([self._count(index, s) for s in segments], dtype=np.float64)
        return rng, rng.multinomial(draw.tokens_per_bin, weights / weights.sum()).tolist()

    def _enclosing(self, index: int, segment: _Segment) -> tuple[RecordedTokens, RecordedTokens, float, Outside | None]:
        """The tokens of the measured budgets around the one asked for, and the upper one's weight."""
        parts = {m: part.between(segment.lo, segment.hi) for m, part in self._measured[index].items()}
        measured = sorted(m for m, part in parts.items() if len(part.lengths_T))
        asked = min(segment.pages, int(self._caps[index]))
        if asked < measured[0] or asked > measured[-1]:
            used = measured[0] if asked < measured[0] else measured[-1]
            self._require_several_budgets(index, asked)
            return parts[used], parts[used], 0.0, Outside(index, asked, used)
        low = max(m for m in measured if m <= asked)
        high = min(m for m in measured if m >= asked)
        weight = 0.0 if low == high else math.log(asked / low) / math.log(high / low)
        return parts[low], parts[high], weight, None

    def _require_several_budgets(self, index: int, asked: int) -> None:
        if all(len(measured) <= 1 for measured in self._measured):
            lo, hi = self.bins.span(index)
            raise InputError(
                f"{self._recordings.source!r} holds traces of one budget only, {self.budgets(index)[0]} pages at "
                f"contexts of {lo} to {'more' if hi is None else hi - 1} tokens, and a policy asks for {asked}; "
                "what another budget does can only be read from traces of several: replay the directory of a "
                "sparrow calibrate run, whose units hold every budget"
            )

    def _interpolated(
        self,
        low: RecordedTokens,
        high: RecordedTokens,
        weight: float,
        pages: int,
        rng: np.random.Generator | None,
        count: int | None,
    ) -> TokenMismatch:
        larger = max(low, high, key=lambda part: len(part.lengths_T))
        if rng is None or count is None:
            size = len(larger.lengths_T)
            ranks_T = places_T = (np.arange(size) + 0.5) / size
        else:
            ranks_T, places_T = rng.random(count), rng.random(count)
        values = {kind: _blend(low.acceptance(kind), high.acceptance(kind), weight, ranks_T) for kind in self._kinds}
        lengths_T = larger.lengths_T[(places_T * len(larger.lengths_T)).astype(np.int64)]
        num_pages_T = self._num_pages(lengths_T)
        pages_T = np.minimum(num_pages_T, pages)
        exact_T = values.get("exact")
        return TokenMismatch(
            lengths_T=torch.from_numpy(lengths_T),
            lower_T=torch.from_numpy(values["lower"]),
            upper_T=torch.from_numpy(values["upper"]),
            pages_T=torch.from_numpy(pages_T),
            attended_T=torch.from_numpy(lengths_T - (num_pages_T - pages_T) * self._page_size),
            exact_T=None if exact_T is None else torch.from_numpy(exact_T),
        )


def _blend(low_T: _Floats, high_T: _Floats, weight: float, ranks_T: _Floats) -> _Floats:
    """The interpolated quantile function at ``ranks_T`` in [0, 1)."""
    low, high = (np.sort(v)[(ranks_T * len(v)).astype(np.int64)] for v in (low_T, high_T))
    return (1 - weight) * low + weight * high if weight else low


def _segments(schedule: BudgetSchedule, lo: int, hi: int | None) -> Iterator[_Segment]:
    """The parts of a bin that the schedule gives different budgets."""
    last_edge = (schedule.num_bins - 1) * schedule.bin_tokens
    stop = last_edge + 1 if hi is None else min(hi, last_edge + 1)
    first = (lo // schedule.bin_tokens + 1) * schedule.bin_tokens
    edges = [lo, *range(first, stop, schedule.bin_tokens)]
    start, pages = lo, int(schedule.pages_at(torch.tensor(lo)))
    for edge in edges[1:]:
        there = int(schedule.pages_at(torch.tensor(edge)))
        if there != pages:
            yield _Segment(start, edge, pages)
            start, pages = edge, there
    yield _Segment(start, hi, pages)
