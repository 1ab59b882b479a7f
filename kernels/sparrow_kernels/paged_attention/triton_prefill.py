"""Paged prefill attention in Triton: packed causal chunks over their whole paged context.

Shapes follow the legend of ``sparrow_core.cache``. One program per block of a chunk's queries and query head; programs
of the heads of a group run side by side, so their pages are read from memory once.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparrow_kernels.jit_math import dot, interpreted
from sparrow_kernels.paged_attention.triton import LOG2_E

_FLOOR = tl.constexpr(-1e30)


def paged_prefill(
    q_TND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    cu_seqlens_B1: torch.Tensor,
    lengths_B: torch.Tensor,
    page_table_BW: torch.Tensor,
    scale: float,
    max_chunk: int,
    *,
    block: int | None = None,
    tile: int | None = None,
) -> torch.Tensor:
    """Dense causal attention of packed chunks; see ``naive.paged_prefill``.

    Args:
        max_chunk: host-side bound of a chunk's tokens.
        block, tile: queries per program, keys per step; by default from the dtype.

    Returns:
        ``[T, N, D]`` in the query's dtype.
    """
    _, N, D = q_TND.shape
    _, K, S, _ = k_PKSD.shape
    assert q_TND.stride(2) == 1
    assert k_PKSD.stride() == v_PKSD.stride()
    assert k_PKSD.stride()[1:] == (S * D, D, 1), "pages must be contiguous"
    wide = q_TND.element_size() > 2
    block = block or min(32 if wide else 128, max(16, triton.next_power_of_2(max_chunk)))
    tile = tile or (32 if wide else 64)
    out_TND = torch.empty_like(q_TND, memory_format=torch.contiguous_format)
    _prefill[(N, triton.cdiv(max_chunk, block), lengths_B.shape[0])](
        q_TND,
        k_PKSD,
        v_PKSD,
        out_TND,
        cu_seqlens_B1,
        lengths_B,
        page_table_BW,
        scale * LOG2_E,
        *q_TND.stride()[:2],
        *out_TND.stride()[:2],
        k_PKSD.stride(0),
        page_table_BW.stride(0),
        G=N // K,
        D=D,
        S=S,
        BLOCK=block,
        TILE=tile,
        WIDEN=interpreted(),
        num_warps=8 if block >= 128 else 4,
        num_stages=3,
    )
    return out_TND


@triton.jit
def _prefill(
    q,
    k,
    v,
    out,
    cu_seqlens,
    lengths,
    table,
    scale,
    q_t,
    q_n,
    out_t,
    out_n,
    kv_page,
    table_b,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    b = tl.program_id(2)
    head = tl.program_id(0)
    chunk_start = tl.load(cu_seqlens + b)
    chunk = tl.load(cu_seqlens + b + 1) - chunk_start
    block_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK
    if block_start >= chunk:
        return
    length = tl.load(lengths + b)
    query_C = block_start + tl.arange(0, BLOCK)
    position_C = length - chunk + query_C
    seen = tl.minimum(length, length - chunk + block_start + BLOCK)
    dims = tl.arange(0, D)
    row_C = (chunk_start + query_C).to(tl.int64)
    live_C1 = query_C[:, None] < chunk
    q_CD = tl.load(q + row_C[:, None] * q_t + head * q_n + dims[None, :], mask=live_C1, other=0.0)

    table_row = table + b.to(tl.int64) * table_b
    maximum_C = tl.full([BLOCK], _FLOOR, tl.float32)
    sum_C = tl.zeros([BLOCK], tl.float32)
    acc_CD = tl.zeros([BLOCK, D], tl.float32)
    token_T = tl.arange(0, TILE)
    page_T = tl.load(table_row + token_T // S, mask=token_T < seen, other=0)
    for _ in range(tl.cdiv(seen, TILE)):
        live_T = token_T < seen
        offset_T = page_T.to(tl.int64) * kv_page + head // G * (S * D) + token_T % S * D
        causal_CT = token_T[None, :] <= position_C[:, None]
        token_T += TILE
        page_T = tl.load(table_row + token_T // S, mask=token_T < seen, other=0)
        k_TD = tl.load(k + offset_T[:, None] + dims[None, :])
        v_TD = tl.load(v + offset_T[:, None] + dims[None, :], mask=live_T[:, None], other=0.0)
        score_CT = dot(q_CD, tl.trans(k_TD), tl.zeros([BLOCK, TILE], tl.float32), WIDEN) * scale
        score_CT = tl.where(causal_CT & live_T[None, :], score_CT, -float("inf"))
        new_maximum_C = tl.maximum(maximum_C, tl.max(score_CT, 1))
        weight_CT = tl.exp2(score_CT - new_maximum_C[:, None])
        decay_C = tl.exp2(maximum_C - new_maximum_C)
        sum_C = sum_C * decay_C + tl.sum(weight_CT, 1)
        acc_CD = dot(weight_CT.to(v_TD.dtype), v_TD, acc_CD * decay_C[:, None], WIDEN)
        maximum_C = new_maximum_C
    out_CD = (acc_CD / sum_C[:, None]).to(out.dtype.element_ty)
    tl.store(out + row_C[:, None] * out_t + head * out_n + dims[None, :], out_CD, mask=live_C1)
