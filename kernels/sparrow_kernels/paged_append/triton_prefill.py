"""Prefill's writing to the paged cache in Triton: packed chunks of keys and values, then landmarks of filled pages.

Shapes follow the legend of ``sparrow_core.cache``.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparrow_kernels.paged_append.triton import LandmarkKind, check_pools, page_shape, write_marks

_TOKENS = 16
"""Tokens per program."""


def prefill_append(
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    cu_seqlens_B1: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    landmark: LandmarkKind,
    max_chunk: int,
) -> None:
    """Write packed chunks that end at ``lengths``, and the landmarks of pages this fills (a second launch).

    Args:
        max_chunk: host-side bound of a chunk's tokens.
    """
    T, K, D = k_TKD.shape
    B = lengths_B.shape[0]
    S = k_PKSD.shape[2]
    check_pools(k_PKSD, v_PKSD, landmarks_PKMD, landmark)
    if T == 0:
        return
    _prefill_append[(triton.cdiv(T, _TOKENS), K)](
        k_TKD,
        v_TKD,
        k_PKSD,
        v_PKSD,
        cu_seqlens_B1,
        page_table_BW,
        lengths_B,
        T,
        B,
        *k_TKD.stride()[:2],
        *v_TKD.stride()[:2],
        k_PKSD.stride(0),
        page_table_BW.stride(0),
        D=D,
        S=S,
        TOKENS=_TOKENS,
        ROWS=max(16, triton.next_power_of_2(B)),
        num_warps=4,
    )
    if landmark != "none":
        _prefill_landmarks[(max_chunk // S + 1, K, B)](
            k_PKSD,
            landmarks_PKMD,
            cu_seqlens_B1,
            page_table_BW,
            lengths_B,
            k_PKSD.stride(0),
            landmarks_PKMD.stride(0),
            page_table_BW.stride(0),
            **page_shape(k_PKSD, landmarks_PKMD, landmark),
            num_warps=2,
        )


@triton.jit
def _prefill_append(
    k,
    v,
    k_pool,
    v_pool,
    cu_seqlens,
    table,
    lengths,
    num_tokens,
    num_sequences,
    k_t,
    k_n,
    v_t,
    v_n,
    kv_page,
    table_b,
    D: tl.constexpr,
    S: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
):
    head = tl.program_id(1)
    token_T = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    rows = tl.arange(0, ROWS)
    end_R = tl.load(cu_seqlens + 1 + rows, mask=rows < num_sequences, other=2147483647)
    row_T = tl.sum((end_R[None, :] <= token_T[:, None]).to(tl.int32), 1)
    live_T = (token_T < num_tokens) & (row_T < num_sequences)
    end_T = tl.load(cu_seqlens + 1 + row_T, mask=live_T, other=0)
    position_T = tl.load(lengths + row_T, mask=live_T, other=0) - end_T + token_T
    page_T = tl.load(table + row_T.to(tl.int64) * table_b + position_T // S, mask=live_T, other=0).to(tl.int64)
    dims = tl.arange(0, D)
    to_TD = (page_T * kv_page + head * (S * D) + position_T % S * D)[:, None] + dims[None, :]
    token_T = token_T.to(tl.int64)
    live_T1 = live_T[:, None]
    k_TD = tl.load(k + head * k_n + token_T[:, None] * k_t + dims[None, :], mask=live_T1)
    v_TD = tl.load(v + head * v_n + token_T[:, None] * v_t + dims[None, :], mask=live_T1)
    tl.store(k_pool + to_TD, k_TD.to(k_pool.dtype.element_ty), mask=live_T1)
    tl.store(v_pool + to_TD, v_TD.to(v_pool.dtype.element_ty), mask=live_T1)


@triton.jit
def _prefill_landmarks(
    k_pool,
    landmarks,
    cu_seqlens,
    table,
    lengths,
    kv_page,
    landmarks_page,
    table_b,
    D: tl.constexpr,
    S: tl.constexpr,
    SLOTS: tl.constexpr,
    M: tl.constexpr,
    VECTORS: tl.constexpr,
):
    head = tl.program_id(1)
    b = tl.program_id(2)
    end = tl.load(lengths + b)
    start = end - (tl.load(cu_seqlens + b + 1) - tl.load(cu_seqlens + b))
    logical = start // S + tl.program_id(0)
    if (logical + 1) * S > end:
        return
    page = tl.load(table + b.to(tl.int64) * table_b + logical).to(tl.int64)
    slots = tl.arange(0, SLOTS)[:, None]
    dims = tl.arange(0, D)
    key_SD = tl.load(k_pool + page * kv_page + head * (S * D) + slots * D + dims[None, :], mask=slots < S, other=0.0)
    write_marks(
        key_SD.to(tl.float32), slots < S, landmarks + page * landmarks_page + head * (M * D) + dims, D, S, VECTORS
    )
