"""Statistics of an objective as sums that merge over micro-batches and ranks.

Shapes: T tokens.
"""

from __future__ import annotations

import torch

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Reduce

_SEPARATOR = "\n"


class MetricSums:
    """Name to (sum, weight), both float64. Merging in any grouping gives the same means up to float64 rounding."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, total: float, weight: float) -> None:
        old_total, old_weight = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (old_total + total, old_weight + weight)

    def add_tokens(self, name: str, values_T: torch.Tensor, mask_T: torch.Tensor) -> None:
        """The masked tokens' values, each of weight 1. Both must be ``[T]``: nothing is broadcast."""
        if values_T.shape != mask_T.shape:
            raise InputError(
                f"metric {name!r} has shape {list(values_T.shape)}, its mask {list(mask_T.shape)}; "
                "give one value per token"
            )
        values_T = values_T.detach().double()
        self.add(name, float(torch.where(mask_T, values_T, 0.0).sum()), float(mask_T.sum()))

    def merge(self, other: MetricSums) -> None:
        for name, (total, weight) in other._sums.items():
            self.add(name, total, weight)

    def reduce(self, reduce: Reduce) -> MetricSums:
        """The sums over all ranks. A rank without any token may hold nothing; all others must hold the same names.

        Raises InputError when they do not.
        """
        names = self._names_everywhere(reduce)
        pairs = [self._sums.get(name, (0.0, 0.0)) for name in names]
        totals = reduce(torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2)).tolist()
        result = MetricSums()
        result._sums = {name: (total, weight) for name, (total, weight) in zip(names, totals, strict=True)}
        return result

    def _names_everywhere(self, reduce: Reduce) -> list[str]:
        """Sorted names. ``Reduce`` only sums, so equal names are found as the mean of the ranks' name bytes."""
        own = _SEPARATOR.join(sorted(self._sums)).encode()
        ranks, length = reduce(torch.tensor([float(bool(own)), float(len(own))], dtype=torch.float64)).tolist()
        if ranks == 0:
            return []
        padded = torch.zeros(round(length / ranks), dtype=torch.float64)
        known = min(len(own), len(padded))
        padded[:known] = torch.tensor(list(own[:known]), dtype=torch.float64)
        mean = reduce(padded) / ranks
        everywhere = bytes(round(code) for code in mean.tolist())
        if own and everywhere != own:
            raise InputError(
                f"this rank has the metrics {sorted(self._sums)}, another rank has others; statistics of a custom part "
                "must have the same names in every micro-batch"
            )
        return everywhere.decode().split(_SEPARATOR)

    def means(self) -> dict[str, float]:
        """Sum over weight; a name whose weight is 0 has no mean and is left out."""
        return {name: total / weight for name, (total, weight) in sorted(self._sums.items()) if weight != 0}
