"""A synthetic model of the mismatch: streams with a known tail, to try policies on without a language model.

The lower-tail quantile of the acceptance at context length n under p pages is taken as

    1 - tail(n, p) = (1 - anchor_tail) (need(n) / p) ^ pages_exponent
    need(n)        = pages_at_1k (n / 1000) ^ length_exponent

and a sequence that attends to all its pages differs from dense by less than 0.001. The defaults follow the published
budgets of Qwen3-1.7B (arXiv 2606.08446): 32 pages at 1K and 256 at 19K for tau = 0.86, and 96, 160, 256, 384, 768
pages at 19K for tau = 0.75, 0.80, 0.86, 0.90, 0.94, which is a power law in pages with exponent 0.7. Per token,
``informative`` of the acceptances are Beta distributed on [0, 0.999], the others lie above 0.999.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from sparrow_core.mismatch import TAIL_LIMIT, MismatchStream, TokenMismatch
from sparrow_core.schedule import BudgetSchedule

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SyntheticMismatch:
    """The tail model's parameters. ``pages_at_1k`` scales how hard the model is: a step change alters it."""

    pages_at_1k: float = 32.0
    length_exponent: float = 0.7
    pages_exponent: float = 0.7
    anchor_tail: float = 0.86
    informative: float = 0.4
    """Share of tokens with an acceptance below 0.999; must exceed the quantile."""
    beta: float = 0.8
    """Second shape parameter of the Beta distribution; the first follows from the tail."""
    quantile: float = 0.05
    page_size: int = 16

    def token_tail(self, lengths: _Ints, pages: _Ints) -> _Floats:
        """The quantile ``[T]`` of the acceptance at each length and budget; 1 where every page is attended."""
        need = self.pages_at_1k * (lengths / 1000.0) ** self.length_exponent
        lost = (1 - self.anchor_tail) * (need / pages) ** self.pages_exponent
        tail = np.clip(1 - lost, 0.01, 0.998)
        return np.where(pages >= self._num_pages(lengths), 1.0, tail)

    def sample(self, lengths: _Ints, pages: _Ints, rng: np.random.Generator) -> _Floats:
        """Acceptances ``[T]`` of tokens drawn at these lengths and budgets."""
        tail = self.token_tail(lengths, pages)
        low = TAIL_LIMIT * rng.beta(self._alpha(tail), self.beta)
        high = 1 - (1 - TAIL_LIMIT) * rng.random(len(lengths))
        return np.where((rng.random(len(lengths)) < self.informative) & (tail < 1), low, high)

    def bin_tail(self, index: int, pages: int, *, bin_tokens: int = 2000) -> float:
        """The exact quantile in a bin whose tokens are spread evenly over its lengths; 0.999 stands for all above."""
        lengths = (index * bin_tokens + (np.arange(100) + 0.5) * bin_tokens / 100).astype(np.int64)
        tail = self.token_tail(np.maximum(lengths, 1), np.full(100, pages))
        alpha, sparse = self._alpha(tail), tail < 1

        def below(x: float) -> float:
            cdf = special.betainc(alpha, self.beta, x / TAIL_LIMIT)
            return self.informative * float(np.mean(np.where(sparse, cdf, 0.0)))

        low, high = 0.0, TAIL_LIMIT
        if below(high) < self.quantile:
            return TAIL_LIMIT
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if below(middle) < self.quantile else (low, middle)
        return (low + high) / 2

    def required_pages(self, index: int, tau: float, *, bin_tokens: int = 2000) -> int:
        """The smallest budget whose tail in the bin is at least ``tau``."""
        low, high = 1, self._num_pages(np.array([(index + 1) * bin_tokens]))[0]
        while low < high:
            middle = (low + high) // 2
            if self.bin_tail(index, int(middle), bin_tokens=bin_tokens) >= tau:
                high = middle
            else:
                low = middle + 1
        return int(low)

    def _num_pages(self, lengths: _Ints) -> _Ints:
        return -(-lengths // self.page_size)

    def _alpha(self, tail: _Floats) -> _Floats:
        """First shape parameter that puts the mixture's quantile at ``tail``."""
        grid, alpha = _alpha_table(self.quantile / self.informative, self.beta)
        return np.interp(np.minimum(tail, 0.998) / TAIL_LIMIT, grid, alpha)


def simulate(
    model: SyntheticMismatch,
    schedule: BudgetSchedule,
    *,
    tokens_per_bin: int | Sequence[int] = 2000,
    num_bins: int | None = None,
    seed: int | Sequence[int] = 0,
) -> MismatchStream:
    """The stream of a rollout under ``schedule``, with lengths spread evenly over each bin.

    Args:
        tokens_per_bin: one count, or one per bin (0 leaves a bin empty).
        num_bins: bins of the stream; the schedule's when None.
    """
    rng = np.random.default_rng(seed)
    num_bins = num_bins or schedule.num_bins
    counts = [tokens_per_bin] * num_bins if isinstance(tokens_per_bin, int) else list(tokens_per_bin)
    width = schedule.bin_tokens
    lengths = np.concatenate([rng.integers(max(b * width, 1), (b + 1) * width, n) for b, n in enumerate(counts)])
    budgets = schedule.pages_at(torch.from_numpy(lengths)).numpy().astype(np.int64)
    num_pages = -(-lengths // schedule.page_size)
    pages = np.minimum(budgets, num_pages)
    acceptance = torch.from_numpy(model.sample(lengths, budgets, rng))
    stream = MismatchStream(bin_tokens=width, num_bins=num_bins, quantile=model.quantile)
    stream.observe(
        TokenMismatch(
            lengths_T=torch.from_numpy(lengths),
            lower_T=acceptance,
            upper_T=(acceptance + 0.002).clamp(max=1.0),
            pages_T=torch.from_numpy(pages),
            attended_T=torch.from_numpy(lengths - (num_pages - pages) * schedule.page_size),
            exact_T=acceptance,
        )
    )
    return stream


@lru_cache(maxsize=16)
def _alpha_table(share: float, beta: float) -> tuple[_Floats, _Floats]:
    """Shape parameters ``alpha`` with ``P(Beta(alpha, beta) <= x) = share`` on a grid of x."""
    grid = np.linspace(0.005, 0.9995, 4000)
    return grid, np.asarray(special.btdtria(share, beta, grid), dtype=np.float64)
