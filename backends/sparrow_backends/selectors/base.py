"""What selectors share: the step from scores to pages."""

from __future__ import annotations

from dataclasses import replace

import torch

from sparrow_core.cache import DecodeBatch, LayerCache, PageSelection
from sparrow_core.contracts import PageSelector
from sparrow_kernels.select_pages.naive import select_pages


class ScoredSelector(PageSelector):
    """Keeps the sinks, the recent pages and the best-scored of the middle.

    A subclass gives ``Config``, ``landmark_vectors`` and ``score``, and ``landmarks`` if it keeps any.
    """

    def select(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> PageSelection:
        width = max(1, -(-batch.max_length // cache.page_size))
        if width < batch.page_table_BW.shape[1]:
            batch = replace(batch, page_table_BW=batch.page_table_BW[:, :width])
        pages_BKJ, counts_BK = select_pages(
            self.score(q_BND, cache, batch),
            batch.page_table_BW,
            batch.lengths_B,
            batch.budgets_B,
            page_size=cache.page_size,
            sink_pages=self.layout.sink_pages,
            recent_pages=self.layout.recent_pages,
            max_selected=min(batch.max_budget, width),
        )
        return PageSelection(pages_BKJ, counts_BK)
