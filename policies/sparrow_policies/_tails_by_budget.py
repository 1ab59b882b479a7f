"""What is known of every budget in every bin, for one kernel: readings that pool, age and can be explored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparrow_policies._tail import TailReading

_MOST_TOKENS = 40_000
"""Older readings of a cell count for no more tokens than this, so that it stays able to follow."""


@dataclass(slots=True)
class TailsByBudget:
    """Readings per (budget, bin); a missing one means never measured, or measured before the model changed."""

    budgets: tuple[int, ...]
    num_bins: int
    readings: dict[tuple[int, int], TailReading] = field(default_factory=dict)

    def add(self, pages: int, index: int, reading: TailReading) -> None:
        """Pool a reading into its cell. One that contradicts it replaces it, and smaller budgets are to be retried."""
        known = self.readings.get((pages, index))
        if known is None:
            self.readings[pages, index] = reading
        elif reading.contradicts(known):
            self.readings[pages, index] = reading
            for smaller in self.budgets:
                if smaller < pages:
                    self.readings.pop((smaller, index), None)
        else:
            self.readings[pages, index] = known.pooled(reading, _MOST_TOKENS)

    def lower_bounds(self, pages: int) -> tuple[float | None, ...]:
        """Per bin, the lower confidence bound of the budget's tail; None where it is not known."""
        cells = [self.readings.get((pages, index)) for index in range(self.num_bins)]
        return tuple(None if cell is None else cell.low for cell in cells)

    def with_trials(self, tau: float, margin: float, trial_tokens: int) -> dict[int, tuple[float | None, ...]]:
        """``lower_bounds`` per budget, where one budget per bin may be taken to meet tau for a while.

        It is the largest below the smallest budget that surely exceeds tau + margin, as long as it was not measured,
        or shows a tail of at least tau in fewer than ``trial_tokens`` tokens.
        """
        bounds = {pages: list(self.lower_bounds(pages)) for pages in self.budgets}
        for index in range(self.num_bins):
            pages = self._next_trial(index, tau, margin)
            known = None if pages is None else self.readings.get((pages, index))
            if pages is None or (known is not None and (known.tail < tau or known.tokens >= trial_tokens)):
                continue
            bounds[pages][index] = max(tau, bounds[pages][index] or 0.0)
        return {pages: tuple(row) for pages, row in bounds.items()}

    def _next_trial(self, index: int, tau: float, margin: float) -> int | None:
        sure = [p for p in self.budgets if (r := self.readings.get((p, index))) is not None and r.low >= tau + margin]
        below = [p for p in self.budgets if sure and p < min(sure)]
        return max(below) if below else None

    def state(self) -> list[list[Any]]:
        return [[pages, index, r.tokens, r.tail, r.low, r.high] for (pages, index), r in sorted(self.readings.items())]

    def load(self, rows: list[list[Any]]) -> None:
        self.readings = {(int(p), int(i)): TailReading(int(n), *map(float, tail)) for p, i, n, *tail in rows}
