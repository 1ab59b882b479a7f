"""What selectors share: the step from scores to pages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypedDict

import torch

from sparrow_core.cache import DecodeBatch, LayerCache, PageSelection
from sparrow_core.contracts import PageSelector
from sparrow_kernels.select_pages.naive import select_pages

if TYPE_CHECKING:
    from sparrow_kernels.page_scores.triton import ScoreKind


class _Rule(TypedDict):
    page_size: int
    sink_pages: int
    recent_pages: int
    max_selected: int


class ScoredSelector(PageSelector):
    """Keeps the sinks, the recent pages and the best-scored of the middle.

    A subclass gives ``Config``, ``landmark_vectors`` and ``score``, and ``landmarks`` if it keeps any.
    """

    kernel_score: ClassVar[ScoreKind | None] = None
    """The kernel that computes the same as ``score``, where there is one: on CUDA it scores and selects."""

    def select(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> PageSelection:
        width = max(1, -(-batch.max_length // cache.page_size))
        if width < batch.page_table_BW.shape[1]:
            batch = replace(batch, page_table_BW=batch.page_table_BW[:, :width])
        rule: _Rule = {
            "page_size": cache.page_size,
            "sink_pages": self.layout.sink_pages,
            "recent_pages": self.layout.recent_pages,
            "max_selected": min(batch.max_budget, width),
        }
        if q_BND.is_cuda and q_BND.dtype != torch.float64:
            return self._select_by_kernel(q_BND, cache, batch, rule)
        where = (batch.page_table_BW, batch.lengths_B, batch.budgets_B)
        return PageSelection(*select_pages(self.score(q_BND, cache, batch), *where, **rule))

    def _select_by_kernel(
        self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch, rule: _Rule
    ) -> PageSelection:
        from sparrow_kernels.page_scores.triton import scores_head_dim
        from sparrow_kernels.select_pages import triton as kernels

        where = (batch.page_table_BW, batch.lengths_B, batch.budgets_B)
        if self.kernel_score is not None and scores_head_dim(q_BND.shape[2]):
            marks_PKMD = cache.landmarks_PKMD
            return PageSelection(
                *kernels.select_by_landmarks(q_BND, marks_PKMD, *where, kind=self.kernel_score, **rule)
            )
        scores_BKW = self.score(q_BND, cache, batch).float().contiguous()
        return PageSelection(*kernels.select_pages(scores_BKW, *where, **rule))
