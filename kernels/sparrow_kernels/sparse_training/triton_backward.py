"""Gradients of keys and values in Triton, by inverse lists: for every page, the queries that attend to it.

Shapes follow the legend of ``sparrow_core.cache``, with C queries in place of B sequences; E selected pages over all
queries and KV heads, R rows (queries times heads of the group) per step.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sparrow_kernels.jit_math import dot, interpreted
from sparrow_kernels.sparse_training.naive import tokens_in_page

_LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True)
class InverseLists:
    """The queries of each page and KV head, one list after another."""

    offsets: torch.Tensor
    """int64 ``[P * K + 1]``: where the list of ``page * K + head`` starts."""
    query_E: torch.Tensor
    """int32, ascending within a list."""
    filled_E: torch.Tensor
    """int32 tokens of the page that the query attends to: S, or fewer in its last page."""


def inverse_lists(
    pages_CKJ: torch.Tensor, counts_CK: torch.Tensor, lengths_C: torch.Tensor, num_pool_pages: int, page_size: int
) -> InverseLists:
    _, K, J = pages_CKJ.shape
    device = pages_CKJ.device
    entry_J = torch.arange(J, device=device)
    filled_CKJ = tokens_in_page(entry_J, counts_CK[..., None], lengths_C[:, None, None], page_size)
    list_CKJ = pages_CKJ.int() * K + torch.arange(K, device=device, dtype=torch.int32)[:, None]
    list_CKJ = torch.where(entry_J < counts_CK[..., None], list_CKJ, num_pool_pages * K)
    list_E, order_E = list_CKJ.flatten().sort(stable=True)
    starts = torch.searchsorted(list_E, torch.arange(num_pool_pages * K + 1, device=device, dtype=torch.int32))
    query_E = torch.div(order_E, K * J, rounding_mode="floor").int()
    return InverseLists(starts, query_E, filled_CKJ.flatten()[order_E].int())


def add_key_value_gradients(
    grad_CND: torch.Tensor,
    q_CND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    lse_CN: torch.Tensor,
    delta_CN: torch.Tensor,
    pages_CKJ: torch.Tensor,
    counts_CK: torch.Tensor,
    lengths_C: torch.Tensor,
    scale: float,
    grad_k_PKSD: torch.Tensor,
    grad_v_PKSD: torch.Tensor,
) -> None:
    """Add the gradients of keys and values to ``grad_k_PKSD`` and ``grad_v_PKSD`` (float32).

    Args:
        delta_CN: float32 ``sum_d grad * out`` per query head.
    """
    _, N, D = q_CND.shape
    P, K, S, _ = k_PKSD.shape
    assert grad_k_PKSD.dtype == grad_v_PKSD.dtype == torch.float32
    assert grad_k_PKSD.is_contiguous()
    assert grad_v_PKSD.is_contiguous()
    lists = inverse_lists(pages_CKJ, counts_CK, lengths_C, P, S)
    group = triton.next_power_of_2(N // K)
    rows = max(16 if q_CND.element_size() > 2 else 32, group)
    _grad_kv[(P * K,)](
        q_CND, k_PKSD, v_PKSD, lse_CN, delta_CN, grad_CND, grad_k_PKSD, grad_v_PKSD,
        lists.offsets, lists.query_E, lists.filled_E, scale,
        K=K,
        G=N // K,
        D=D,
        S=S,
        GROUP=group,
        ROWS=rows,
        SLOTS=max(16, triton.next_power_of_2(S)),
        WIDEN=interpreted(),
        num_warps=4,
    )  # fmt: skip


@triton.jit
def _grad_kv(
    q,
    k,
    v,
    lse,
    delta,
    grad,
    grad_k,
    grad_v,
    offsets,
    queries,
    filled,
    scale,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    page_head = tl.program_id(0)
    first = tl.load(offsets + page_head)
    end = tl.load(offsets + page_head + 1)
    if first == end:
        return
    head = page_head % K
    dims = tl.arange(0, D)
    slot_S = tl.arange(0, SLOTS)
    exists_S1 = (slot_S < S)[:, None]
    at_SD = (page_head.to(tl.int64) * S + slot_S)[:, None] * D + dims[None, :]
    k_SD = tl.load(k + at_SD, mask=exists_S1, other=0.0)
    v_SD = tl.load(v + at_SD, mask=exists_S1, other=0.0)
    row_R = tl.arange(0, ROWS)
    g_R = row_R % GROUP
    STEP: tl.constexpr = ROWS // GROUP
    acc_k_SD = tl.zeros([SLOTS, D], tl.float32)
    acc_v_SD = tl.zeros([SLOTS, D], tl.float32)
    zero_RS = tl.zeros([ROWS, SLOTS], tl.float32)
    for start in range(first, end, STEP):
        entry_R = start + row_R // GROUP
        live_R = (entry_R < end) & (g_R < G)
        query_R = tl.load(queries + entry_R, mask=live_R, other=0).to(tl.int64)
        filled_R = tl.load(filled + entry_R, mask=live_R, other=0)
        head_R = (query_R * K + head) * G + g_R
        at_RD = head_R[:, None] * D + dims[None, :]
        q_RD = tl.load(q + at_RD, mask=live_R[:, None], other=0.0)
        grad_RD = tl.load(grad + at_RD, mask=live_R[:, None], other=0.0)
        lse_R = tl.load(lse + head_R, mask=live_R, other=0.0) * _LOG2_E
        delta_R = tl.load(delta + head_R, mask=live_R, other=0.0)
        seen_RS = slot_S[None, :] < filled_R[:, None]
        score_RS = dot(q_RD, tl.trans(k_SD), zero_RS, WIDEN) * (scale * _LOG2_E)
        weight_RS = tl.where(seen_RS, tl.exp2(score_RS - lse_R[:, None]), 0.0)
        grad_weight_RS = dot(grad_RD, tl.trans(v_SD), zero_RS, WIDEN)
        grad_score_RS = tl.where(seen_RS, weight_RS * (grad_weight_RS - delta_R[:, None]), 0.0)
        acc_v_SD = dot(tl.trans(weight_RS.to(grad_RD.dtype)), grad_RD, acc_v_SD, WIDEN)
        acc_k_SD = dot(tl.trans(grad_score_RS.to(q_RD.dtype)), q_RD, acc_k_SD, WIDEN)
    tl.store(grad_k + at_SD, tl.load(grad_k + at_SD, mask=exists_S1) + acc_k_SD * scale, mask=exists_S1)
    tl.store(grad_v + at_SD, tl.load(grad_v + at_SD, mask=exists_S1) + acc_v_SD, mask=exists_S1)
