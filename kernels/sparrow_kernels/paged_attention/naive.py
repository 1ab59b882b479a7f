"""Attention over the paged cache, readable. Shapes follow the legend of ``sparrow_core.cache``.

Arithmetic is float32, or float64 when the query is. Unused slots and pages may hold NaN: scores are masked and
values are zeroed before they are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from sparrow_kernels.select_pages.naive import num_pages


def math_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def gather_pages(pool_PKSD: torch.Tensor, pages_BKJ: torch.Tensor, scratch: torch.Tensor | None = None) -> torch.Tensor:
    """Each KV head's pages one after another, ``[B, K, J * S, D]``, in ``scratch`` (flat, pool's dtype) if given."""
    _, K, S, D = pool_PKSD.shape
    B, _, J = pages_BKJ.shape
    rows_X = (pages_BKJ * K + torch.arange(K, device=pages_BKJ.device, dtype=pages_BKJ.dtype)[:, None]).flatten()
    pool_XSD = pool_PKSD.flatten(0, 1)
    if scratch is None:
        return pool_XSD.index_select(0, rows_X).view(B, K, J * S, D)
    out_XSD = scratch[: rows_X.numel() * S * D].view(-1, S, D)
    return torch.index_select(pool_XSD, 0, rows_X, out=out_XSD).view(B, K, J * S, D)


def dense_pages(
    page_table_BW: torch.Tensor, lengths_B: torch.Tensor, num_kv_heads: int, page_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The selection that holds every page.

    Returns:
        int32 pages ``[B, K, W]`` (a view expanded over K, 0 past the count) and int32 counts ``[B, K]``.
    """
    n_B = num_pages(lengths_B, page_size).to(torch.int32)
    exists_BW = torch.arange(page_table_BW.shape[1], device=page_table_BW.device) < n_B[:, None]
    pages_BW = torch.where(exists_BW, page_table_BW, 0).to(torch.int32)
    return pages_BW[:, None].expand(-1, num_kv_heads, -1), n_B[:, None].expand(-1, num_kv_heads)


def paged_decode(
    q_BND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    pages_BKJ: torch.Tensor,
    counts_BK: torch.Tensor,
    lengths_B: torch.Tensor,
    scale: float,
    scratch: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query per sequence over its selected pages.

    Args:
        pages_BKJ: physical pages in ascending logical order. Entry ``count - 1`` is the sequence's last page,
            filled up to ``length``; the others are full. Entries past the count are ignored but must be valid ids.
        counts_BK: selected pages; 0 for an empty row.
        scratch: ``[2, >= B * K * J * S * D]`` in the cache's dtype for the gathered keys and values. On a CPU, memory
            that is not touched for the first time makes this several times faster.

    Returns:
        ``[B, N, D]`` in the query's dtype and the natural-log LSE ``[B, N]`` in float32.
        An empty row gives zeros and -inf.
    """
    B, N, D = q_BND.shape
    _, K, S, _ = k_PKSD.shape
    dtype = math_dtype(q_BND.dtype)

    unfilled_B = num_pages(lengths_B, S) * S - lengths_B
    tokens_BK = (counts_BK * S - unfilled_B[:, None]).clamp(min=0)
    live_BKX = torch.arange(pages_BKJ.shape[2] * S, device=q_BND.device) < tokens_BK[..., None]

    k_scratch, v_scratch = (None, None) if scratch is None else scratch.unbind()
    k_BKXD = gather_pages(k_PKSD, pages_BKJ, k_scratch).to(dtype)
    v_BKXD = gather_pages(v_PKSD, pages_BKJ, v_scratch).to(dtype)
    v_BKXD.view(-1, D).index_fill_(0, (~live_BKX).flatten().nonzero()[:, 0], 0)
    q_BKGD = q_BND.reshape(B, K, N // K, D).to(dtype) * scale
    scores_BKGX = (q_BKGD @ k_BKXD.mT).masked_fill_(~live_BKX[:, :, None], -torch.inf)

    lse_BKG = scores_BKGX.logsumexp(-1)
    finite_BKG = lse_BKG.masked_fill(lse_BKG == -torch.inf, 0)
    out_BKGD = scores_BKGX.sub_(finite_BKG[..., None]).exp_() @ v_BKXD
    return out_BKGD.view(B, N, D).to(q_BND.dtype), lse_BKG.view(B, N).float()


def paged_prefill(
    q_TND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    cu_seqlens_B1: torch.Tensor,
    lengths_B: torch.Tensor,
    page_table_BW: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Dense causal attention of packed chunks, each the last tokens of its sequence's context.

    Args:
        cu_seqlens_B1: offsets of each chunk in the packed tokens; a chunk may be empty.
        lengths_B: context length with the chunk, whose keys are in the cache already.

    Returns:
        ``[T, N, D]`` in the query's dtype.
    """
    out_TND = torch.zeros_like(q_TND)
    offsets = cu_seqlens_B1.tolist()
    for row, length in enumerate(lengths_B.tolist()):
        start, end = offsets[row], offsets[row + 1]
        if start < end:
            pages_W = page_table_BW[row, : -(-length // k_PKSD.shape[2])]
            out_TND[start:end] = _prefill_one(q_TND[start:end], k_PKSD, v_PKSD, pages_W, length, scale)
    return out_TND


def _prefill_one(
    q_CND: torch.Tensor, k_PKSD: torch.Tensor, v_PKSD: torch.Tensor, pages_W: torch.Tensor, length: int, scale: float
) -> torch.Tensor:
    C, N, D = q_CND.shape
    K = k_PKSD.shape[1]
    dtype = math_dtype(q_CND.dtype)
    pages_1KW = pages_W[None, None].expand(1, K, -1)
    shape_KGXD = (K, N // K, length, D)
    k_KGXD = gather_pages(k_PKSD, pages_1KW)[0, :, None, :length].to(dtype).expand(shape_KGXD)
    v_KGXD = gather_pages(v_PKSD, pages_1KW)[0, :, None, :length].to(dtype).expand(shape_KGXD)
    q_KGCD = q_CND.reshape(C, K, N // K, D).permute(1, 2, 0, 3).to(dtype)
    causal_CX = None
    if length > C:
        position_X = torch.arange(length, device=q_CND.device)
        causal_CX = position_X <= position_X[length - C :, None]
    out_KGCD = F.scaled_dot_product_attention(
        q_KGCD, k_KGXD, v_KGXD, attn_mask=causal_CX, is_causal=causal_CX is None, scale=scale
    )
    return out_KGCD.permute(2, 0, 1, 3).reshape(C, N, D).to(q_CND.dtype)


def merge_lse(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over a union of disjoint token sets from attention over each, exactly.

    Args:
        outs: ``[..., D]`` per split. lses: natural-log LSE ``[...]`` per split, -inf for an empty split.

    Returns:
        The merged output in the splits' dtype and its LSE; zeros and -inf where every split is empty.
    """
    dtype = math_dtype(outs[0].dtype)
    lse_R = torch.stack([lse.to(dtype) for lse in lses])
    lse = lse_R.logsumexp(0)
    weights_R = (lse_R - lse.masked_fill(lse == -torch.inf, 0)).exp()
    out = (torch.stack([out.to(dtype) for out in outs]) * weights_R[..., None]).sum(0)
    return out.to(outs[0].dtype), lse.to(lses[0].dtype)
