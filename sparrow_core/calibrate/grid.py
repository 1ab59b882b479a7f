"""The grid of budgets, measured side by side: one sample of a prompt per budget, all sharing the prompt's pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule
from sparrow_core.trace import SampleKey


def default_budgets(context_pages: int, min_pages: int, count: int = 18) -> tuple[int, ...]:
    """``count`` budgets in even logarithmic steps from ``min_pages`` to half of ``context_pages``, without repeats."""
    top = max(context_pages // 2, min_pages)
    steps = [min_pages * (top / min_pages) ** (i / max(count - 1, 1)) for i in range(count)]
    return tuple(sorted({round(s) for s in steps}))


class BudgetGrid(SparsityPolicy):
    """Sample ``i`` of every prompt runs under ``budgets[i]``; samples past the end run densely."""

    def __init__(self, budgets: Sequence[int], layout: SparseLayout) -> None:
        super().__init__(PluginConfig(type="budget_grid"), layout)
        least = layout.sink_pages + layout.recent_pages + 1
        for budget in budgets:
            if budget < least:
                raise InputError(
                    f"calibrate.budgets has {budget}, below sink + recent + 1 = {least}; give at least {least} pages"
                )
        self._budgets = torch.tensor([*budgets, DENSE_PAGES], dtype=torch.int32)

    def schedule(self) -> BudgetSchedule:
        return BudgetSchedule(
            pages=(DENSE_PAGES,),
            page_size=self.layout.page_size,
            sink_pages=self.layout.sink_pages,
            recent_pages=self.layout.recent_pages,
        )

    def budgets(self, lengths_B: torch.Tensor, keys: Sequence[SampleKey]) -> torch.Tensor:
        samples = torch.tensor([min(key.sample, len(self._budgets) - 1) for key in keys])
        return self._budgets[samples]
