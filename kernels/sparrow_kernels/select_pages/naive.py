"""The selection rule, readable. Shapes follow the legend of ``sparrow_core.cache``.

A sequence of ``n = ceil(length / S)`` pages with a budget of ``b`` pages attends to

* all of them when ``n <= b``;
* else its last ``min(b, recent)`` pages (the partial one among them), its first ``min(b - recent, sink)``
  pages, and the best-scored of the middle for what the budget leaves. Recent pages come before sinks when the
  budget is too small for both.

Equal scores keep the lower logical page; NaN counts as -inf. At fixed scores a larger budget never drops a page.
"""

from __future__ import annotations

import torch


def num_pages(lengths_B: torch.Tensor, page_size: int) -> torch.Tensor:
    """Pages that hold each sequence, ``ceil(length / S)``."""
    return torch.div(lengths_B + (page_size - 1), page_size, rounding_mode="floor")


def select_pages(
    scores_BKW: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    budgets_B: torch.Tensor,
    *,
    page_size: int,
    sink_pages: int,
    recent_pages: int,
    max_selected: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages per sequence and KV head by the rule of this module.

    Args:
        scores_BKW: higher is kept first; read only for middle pages.
        page_table_BW: physical page of each logical page; entries past the sequence's end may hold anything.
        lengths_B: context length in tokens, 0 for an empty row.
        budgets_B: pages to keep, at least 1 and capped at ``max_selected``.
        max_selected: width J of the result, a host-side bound of ``min(budget, n)``.

    Returns:
        int32 physical pages ``[B, K, J]`` in ascending logical order, 0 past the count, and int32 counts ``[B, K]``.
    """
    B, K, W = scores_BKW.shape
    logical_W = torch.arange(W, device=scores_BKW.device)
    n_B1 = num_pages(lengths_B, page_size).long()[:, None]
    budget_B1 = budgets_B.long().clamp(max=max_selected)[:, None]

    recent_B1 = torch.where(n_B1 <= budget_B1, n_B1, budget_B1.clamp(max=recent_pages))
    sink_B1 = (budget_B1 - recent_B1).clamp(min=0, max=sink_pages)
    middle_B1 = (budget_B1 - recent_B1 - sink_B1).clamp(min=0)

    exists_BW = logical_W < n_B1
    forced_BW = exists_BW & ((logical_W >= n_B1 - recent_B1) | (logical_W < sink_B1))
    candidate_BKW = (exists_BW & ~forced_BW)[:, None].expand(B, K, W)

    ranked_BKW = scores_BKW.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    order_BKW = ranked_BKW.argsort(dim=-1, descending=True, stable=True)
    by_rank_BKW = candidate_BKW.gather(-1, order_BKW)
    best_by_rank_BKW = by_rank_BKW & (by_rank_BKW.cumsum(-1) <= middle_B1[:, None])
    best_BKW = torch.zeros_like(best_by_rank_BKW).scatter(-1, order_BKW, best_by_rank_BKW)
    keep_BKW = best_BKW | forced_BW[:, None]

    counts_BK = keep_BKW.sum(-1, dtype=torch.int32)
    target_BKW = torch.where(keep_BKW, keep_BKW.cumsum(-1) - 1, max_selected)
    physical_BKW = torch.where(keep_BKW, page_table_BW[:, None].to(torch.int32), 0)
    pages_BKJ = physical_BKW.new_zeros(B, K, max_selected + 1).scatter(-1, target_BKW, physical_BKW)
    return pages_BKJ[..., :max_selected], counts_BK
