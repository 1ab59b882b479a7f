"""The discrete problem: one configuration per length bin, tail >= tau in each, at least total cost.

A session's kernel (selector and page size) cannot change while a sequence runs, so by default every kernel is
solved by itself and the best one is kept. For one kernel a dynamic program over bins is exact: an assignment's
objective is the sum over bins of ``(misses, shortfall, cost)``, compared lexicographically, and the only tie
between bins is that attended tokens do not fall with length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparrow_core.errors import InputError

_SHORTFALL_UNITS = 10**9
"""Shortfalls are compared as integers, so that sums do not depend on their order."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration that was measured over the length bins."""

    selector: str
    page_size: int
    pages: int
    """Pages attended to, sink and recent pages counted."""
    tails: tuple[float | None, ...]
    """Per bin, a lower bound on the tail; None where there is too little data."""
    costs: tuple[float, ...]
    """Per bin, the cost of the trajectory's tokens there, in any one unit."""

    @property
    def kernel(self) -> tuple[str, int]:
        return (self.selector, self.page_size)

    @property
    def tokens(self) -> int:
        return self.pages * self.page_size


@dataclass(frozen=True, slots=True)
class BinChoice:
    """What one bin uses, and why."""

    candidate: Candidate
    tail: float | None
    """The candidate's tail in this bin; None where it was not measured."""
    inherited_from: int | None
    """The bin whose choice this one copies because it has no data of its own, else None."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best assignment found, which is the best there is."""

    choices: tuple[BinChoice, ...]
    total_cost: float
    tau: float

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(choice.candidate.pages for choice in self.choices)

    @property
    def kernels(self) -> tuple[tuple[str, int], ...]:
        """Selector and page size of each bin; all alike when one kernel serves the whole trajectory."""
        return tuple(choice.candidate.kernel for choice in self.choices)

    @property
    def unmeasured_bins(self) -> tuple[int, ...]:
        """Bins with too little data for any configuration of the chosen kernel; they inherit."""
        return tuple(b for b, choice in enumerate(self.choices) if choice.inherited_from is not None)

    @property
    def extrapolated_bins(self) -> tuple[int, ...]:
        """Unmeasured bins that had to copy a shorter bin, whose tail may be better than theirs."""
        return tuple(b for b in self.unmeasured_bins if (self.choices[b].inherited_from or 0) < b)

    @property
    def infeasible_bins(self) -> tuple[int, ...]:
        """Measured bins whose choice is not known to meet tau."""
        own = [(b, c) for b, c in enumerate(self.choices) if c.inherited_from is None]
        return tuple(b for b, choice in own if choice.tail is None or choice.tail < self.tau)


def optimal_schedule(
    candidates: Sequence[Candidate], tau: float, *, monotone: bool = True, one_kernel: bool = True
) -> SearchResult:
    """The cheapest assignment of candidates to bins whose tail meets ``tau`` in every bin.

    Args:
        candidates: all over the same bins; costs in one unit.
        tau: least acceptable tail, in (0, 1).
        monotone: attended tokens (pages x page size) must not fall with length.
        one_kernel: one selector and page size for the whole trajectory.

    A bin no candidate satisfies takes the candidate with the highest tail (fewest bins below tau first, then the
    least total shortfall, then the least cost) and is listed in ``infeasible_bins``. Give a dense candidate with
    tail 1 to make every bin feasible. A bin where nothing was measured copies the next longer measured bin, whose
    budget suffices for it because tails fall with length; behind the last measured bin it copies that one, and is
    listed in ``extrapolated_bins``.

    Raises InputError when there are no candidates, they disagree on the bins, or no bin was measured.
    """
    _check(candidates, tau)
    kernels = sorted({c.kernel for c in candidates})
    pools = [[c for c in candidates if c.kernel == kernel] for kernel in kernels] if one_kernel else [list(candidates)]
    measured_anywhere = _measured_bins(candidates)
    solved = [_solve(pool, tau, monotone, measured_anywhere) for pool in pools if _measured_bins(pool)]
    best = min(range(len(solved)), key=lambda i: solved[i][0])
    return solved[best][1]


@dataclass(frozen=True, slots=True, order=True)
class _Score:
    misses: int
    shortfall: int
    cost: float
    tokens: int

    def __add__(self, other: _Score) -> _Score:
        return _Score(
            self.misses + other.misses,
            self.shortfall + other.shortfall,
            self.cost + other.cost,
            self.tokens + other.tokens,
        )


def _solve(pool: list[Candidate], tau: float, monotone: bool, expected: list[int]) -> tuple[_Score, SearchResult]:
    """Best assignment within one pool. Every bin of ``expected`` that the pool did not measure counts as a miss."""
    pool = sorted(pool, key=lambda c: (c.tokens, c.kernel))
    measured = _measured_bins(pool)
    num_bins = len(pool[0].tails)
    source = [_inherit(b, measured) for b in range(num_bins)]
    scores = [[_bin_score(c, b, source, tau) for c in pool] for b in measured]
    picks = _dynamic_program(scores, [c.tokens for c in pool], monotone)
    total = _Score(len(set(expected) - set(measured)), 0, 0.0, 0)
    for row, pick in zip(scores, picks, strict=True):
        total += row[pick]
    by_bin = {b: pool[pick] for b, pick in zip(measured, picks, strict=True)}
    choices = tuple(
        BinChoice(by_bin[source[b]], by_bin[source[b]].tails[b], None if source[b] == b else source[b])
        for b in range(num_bins)
    )
    return total, SearchResult(choices, total.cost, tau)


def _bin_score(candidate: Candidate, index: int, source: list[int], tau: float) -> _Score:
    """Score of using ``candidate`` in measured bin ``index`` and in the bins that copy it."""
    tail = candidate.tails[index]
    shortfall = max(0.0, tau - (0.0 if tail is None else tail))
    cost = sum(candidate.costs[b] for b in range(len(source)) if source[b] == index)
    return _Score(int(shortfall > 0), round(shortfall * _SHORTFALL_UNITS), cost, candidate.tokens)


def _dynamic_program(scores: list[list[_Score]], tokens: list[int], monotone: bool) -> list[int]:
    """Candidate index per bin with the least summed score; candidates are sorted by ``tokens``."""
    if not monotone:
        return [min(range(len(row)), key=row.__getitem__) for row in scores]
    best = scores[0]
    came_from: list[list[int]] = []
    for row in scores[1:]:
        previous = _prefix_argmin(best, tokens)
        came_from.append(previous)
        best = [best[previous[i]] + row[i] for i in range(len(row))]
    picks = [min(range(len(best)), key=best.__getitem__)]
    for previous in reversed(came_from):
        picks.append(previous[picks[-1]])
    return picks[::-1]


def _prefix_argmin(best: list[_Score], tokens: list[int]) -> list[int]:
    """For each candidate, the best predecessor that attends to no more tokens than it."""
    out: list[int] = []
    leader = 0
    ahead = 0
    for count in tokens:
        while ahead < len(tokens) and tokens[ahead] <= count:
            leader = min(leader, ahead, key=best.__getitem__)
            ahead += 1
        out.append(leader)
    return out


def _inherit(index: int, measured: list[int]) -> int:
    return next((b for b in measured if b >= index), measured[-1])


def _measured_bins(pool: Sequence[Candidate]) -> list[int]:
    return [b for b in range(len(pool[0].tails)) if any(c.tails[b] is not None for c in pool)]


def _check(candidates: Sequence[Candidate], tau: float) -> None:
    if not 0 < tau < 1:
        raise InputError(f"tau={tau} must lie between 0 and 1; the published safe band is 0.85 to 0.90")
    if not candidates:
        raise InputError("no candidate configurations were given; measure at least one budget")
    num_bins = len(candidates[0].tails)
    for c in candidates:
        if len(c.tails) != num_bins or len(c.costs) != num_bins:
            raise InputError(
                f"candidate {c.selector}, page size {c.page_size}, {c.pages} pages covers {len(c.tails)} tails and "
                f"{len(c.costs)} costs, others {num_bins} bins; measure all over the same bins"
            )
    if not _measured_bins(candidates):
        raise InputError("no bin has enough tokens to state a tail; give more or longer prompts, or wider bins")
