"""Attention of many queries, each over its own pages, readable and differentiable by autograd.

Shapes follow the legend of ``sparrow_core.cache``, with C queries in place of B sequences; X = J * S.

``forward`` and ``backward`` of ``gather.py`` and ``triton.py`` compute the same for fixed page sets. Which pages a
query attends to is a constant: no gradient flows into the selection.
"""

from __future__ import annotations

import torch

from sparrow_kernels.paged_attention.naive import math_dtype
from sparrow_kernels.select_pages.naive import num_pages


def sparse_attention(
    q_CND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    pages_CKJ: torch.Tensor,
    counts_CK: torch.Tensor,
    lengths_C: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query per row over its selected pages, by a mask over every token of the pool.

    Args:
        pages_CKJ: pages in ascending logical order. Entry ``count - 1`` is the query's last page, filled up to
            ``length``; the others are full. Entries past the count are ignored but must be valid ids.
        counts_CK: selected pages; 0 for an empty row.
        lengths_C: tokens before the query, the query's own counted.

    Returns:
        ``[C, N, D]`` in the query's dtype and the natural-log LSE ``[C, N]`` in float32 (float64 for float64).
        An empty row gives zeros and -inf.
    """
    C, N, D = q_CND.shape
    P, K, S, _ = k_PKSD.shape
    dtype = math_dtype(q_CND.dtype)
    seen_CKT = visible_tokens(pages_CKJ, counts_CK, lengths_C, P, S).flatten(2)
    k_KTD, v_KTD = (x.transpose(0, 1).reshape(K, P * S, D).to(dtype) for x in (k_PKSD, v_PKSD))
    v_KTD = v_KTD.masked_fill(~seen_CKT.any(0)[..., None], 0)
    q_CKGD = q_CND.reshape(C, K, N // K, D).to(dtype)
    scores_CKGT = torch.einsum("ckgd,ktd->ckgt", q_CKGD, k_KTD) * scale
    scores_CKGT = scores_CKGT.masked_fill(~seen_CKT[:, :, None], -torch.inf)
    lse_CKG = scores_CKGT.logsumexp(-1)
    finite_CKG = lse_CKG.masked_fill(lse_CKG == -torch.inf, 0)
    out_CKGD = torch.einsum("ckgt,ktd->ckgd", (scores_CKGT - finite_CKG[..., None]).exp(), v_KTD)
    return out_CKGD.reshape(C, N, D).to(q_CND.dtype), lse_CKG.reshape(C, N)


def visible_tokens(
    pages_CKJ: torch.Tensor, counts_CK: torch.Tensor, lengths_C: torch.Tensor, num_pool_pages: int, page_size: int
) -> torch.Tensor:
    """bool ``[C, K, P, S]``: the tokens each query attends to."""
    C, K, J = pages_CKJ.shape
    entry_J = torch.arange(J, device=pages_CKJ.device)
    filled_CKJ = tokens_in_page(entry_J, counts_CK[..., None], lengths_C[:, None, None], page_size)
    filled_CKP = torch.zeros(C, K, num_pool_pages, dtype=torch.int64, device=pages_CKJ.device)
    filled_CKP = filled_CKP.scatter_add(2, pages_CKJ.long(), filled_CKJ)
    return torch.arange(page_size, device=pages_CKJ.device) < filled_CKP[..., None]


def tokens_in_page(entry: torch.Tensor, counts: torch.Tensor, lengths: torch.Tensor, page_size: int) -> torch.Tensor:
    """int64: tokens that a query attends to in the page of its list's entry; 0 past the count."""
    last = lengths - (num_pages(lengths, page_size) - 1) * page_size
    filled = torch.where(entry == counts - 1, last, page_size)
    return torch.where(entry < counts, filled, 0).long()
