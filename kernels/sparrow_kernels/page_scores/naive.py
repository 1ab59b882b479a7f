"""Page scores ``[B, K, W]``, readable. Shapes follow the legend of ``sparrow_core.cache``.

Scores are float32 (float64 for a float64 query), one per logical page. Landmark scores are -inf for pages that are
not full, whose landmarks are never read. Page-table entries past a sequence's end may hold anything.
"""

from __future__ import annotations

import math

import torch

from sparrow_kernels.paged_attention.naive import dense_pages, gather_pages, math_dtype


def mean_landmark(
    q_BND: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    page_size: int,
) -> torch.Tensor:
    """``mean_h(q_h) . mean(k)``; landmark 0 is the mean key. Not scaled: only the order matters."""
    q_BKGD, marks_BKWMD, full_B1W = _landmarks(q_BND, landmarks_PKMD, page_table_BW, lengths_B, page_size)
    scores_BK1W = q_BKGD.mean(2, keepdim=True) @ marks_BKWMD[..., 0, :].mT
    return scores_BK1W.squeeze(2).masked_fill(~full_B1W, -torch.inf)


def gqa_max_softmax(
    q_BND: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    page_size: int,
) -> torch.Tensor:
    """``max_h softmax_w(q_h . mean(k_w) / sqrt(D))`` over the sequence's full pages; landmark 0 is the mean key."""
    q_BKGD, marks_BKWMD, full_B1W = _landmarks(q_BND, landmarks_PKMD, page_table_BW, lengths_B, page_size)
    logits_BKGW = q_BKGD @ marks_BKWMD[..., 0, :].mT / math.sqrt(q_BND.shape[-1])
    logits_BKGW = logits_BKGW.masked_fill(~full_B1W[:, :, None], -torch.inf)
    return logits_BKGW.softmax(-1).amax(2).masked_fill(~full_B1W, -torch.inf)


def quest(
    q_BND: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    page_size: int,
) -> torch.Tensor:
    """``max_h sum_d max(q_hd kmin_d, q_hd kmax_d)``: an upper bound of any token's score (arXiv 2406.10774).

    Landmarks 0 and 1 are the per-channel minimum and maximum of the page's keys.
    """
    q_BKGD, marks_BKWMD, full_B1W = _landmarks(q_BND, landmarks_PKMD, page_table_BW, lengths_B, page_size)
    low_BKWD, high_BKWD = marks_BKWMD.unbind(3)
    bounds_BKGW = q_BKGD.clamp(max=0) @ low_BKWD.mT + q_BKGD.clamp(min=0) @ high_BKWD.mT
    return bounds_BKGW.amax(2).masked_fill(~full_B1W, -torch.inf)


def attention_mass(
    q_BND: torch.Tensor,
    k_PKSD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Exact attention of each page: ``mean_h sum_{t in page} softmax_t(scale q_h . k_t)`` over the heads of the group.

    Covers partial pages too; 0 past the sequence's end.
    """
    B, N, D = q_BND.shape
    _, K, S, _ = k_PKSD.shape
    dtype = math_dtype(q_BND.dtype)
    pages_BKW, _ = dense_pages(page_table_BW, lengths_B, K, S)
    k_BKXD = gather_pages(k_PKSD, pages_BKW).to(dtype)
    live_BX = torch.arange(k_BKXD.shape[2], device=q_BND.device) < lengths_B[:, None]
    logits_BKGX = q_BND.reshape(B, K, N // K, D).to(dtype) @ k_BKXD.mT * scale
    logits_BKGX = logits_BKGX.masked_fill(~live_BX[:, None, None], -torch.inf)
    mass_BKX = logits_BKGX.softmax(-1).mean(2).masked_fill(~live_BX[:, None], 0)
    return mass_BKX.view(B, K, -1, S).sum(-1)


def _landmarks(
    q_BND: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    page_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The query by group, each logical page's landmarks ``[B, K, W, M, D]``, and which pages are full."""
    B, N, D = q_BND.shape
    _, K, M, _ = landmarks_PKMD.shape
    dtype = math_dtype(q_BND.dtype)
    pages_BKW, _ = dense_pages(page_table_BW, lengths_B, K, page_size)
    marks_BKWMD = gather_pages(landmarks_PKMD, pages_BKW).to(dtype).view(B, K, -1, M, D)
    full_B = torch.div(lengths_B, page_size, rounding_mode="floor")
    full_BW = torch.arange(page_table_BW.shape[1], device=q_BND.device) < full_B[:, None]
    return q_BND.reshape(B, K, N // K, D).to(dtype), marks_BKWMD, full_BW[:, None]
