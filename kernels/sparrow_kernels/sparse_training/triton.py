"""The op of ``naive.py`` in Triton: forward and the queries' gradient, one program per query and KV head.

Shapes follow the legend of ``sparrow_core.cache``, with C queries in place of B sequences. The heads of a group share
their pages, so a program reads each selected page once for all of them. Keys' and values' gradients are in
``triton_backward.py``.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparrow_kernels.jit_math import dot, interpreted
from sparrow_kernels.sparse_training.triton_backward import add_key_value_gradients

LOG2_E = 1.4426950408889634
_LN_2 = tl.constexpr(0.6931471805599453)
_FLOOR = tl.constexpr(-1e30)
_LOG2_E = tl.constexpr(LOG2_E)


def serves_head_dim(head_dim: int) -> bool:
    return head_dim in (16, 32, 64, 128, 256)


def forward(
    q_CND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    pages_CKJ: torch.Tensor,
    counts_CK: torch.Tensor,
    lengths_C: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[C, N, D]`` in the query's dtype and natural-log LSE ``[C, N]`` in float32; see ``naive``."""
    C, N, _ = q_CND.shape
    K = k_PKSD.shape[1]
    q_CND, pages_CKJ, counts_CK = q_CND.contiguous(), pages_CKJ.contiguous(), counts_CK.contiguous()
    assert k_PKSD.is_contiguous()
    assert v_PKSD.is_contiguous()
    out_CND = torch.empty_like(q_CND)
    lse_CN = torch.empty(C, N, dtype=torch.float32, device=q_CND.device)
    sizes = _sizes(q_CND, k_PKSD)
    _forward[(C, K)](
        q_CND, k_PKSD, v_PKSD, out_CND, lse_CN, pages_CKJ, counts_CK, lengths_C, scale * LOG2_E, pages_CKJ.shape[2],
        **sizes,
    )  # fmt: skip
    return out_CND, lse_CN


def backward(
    grad_CND: torch.Tensor,
    q_CND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    out_CND: torch.Tensor,
    lse_CN: torch.Tensor,
    pages_CKJ: torch.Tensor,
    counts_CK: torch.Tensor,
    lengths_C: torch.Tensor,
    scale: float,
    grad_k_PKSD: torch.Tensor,
    grad_v_PKSD: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the queries, ``[C, N, D]`` in their dtype; keys' and values' are added to the float32 arguments.

    Deterministic: each page's gradient is summed by one program in the order of the queries.
    """
    C, K = q_CND.shape[0], k_PKSD.shape[1]
    q_CND, grad_CND, out_CND = q_CND.contiguous(), grad_CND.contiguous(), out_CND.contiguous()
    pages_CKJ, counts_CK = pages_CKJ.contiguous(), counts_CK.contiguous()
    grad_q_CND = torch.empty_like(q_CND)
    delta_CN = torch.empty_like(lse_CN)
    sizes = _sizes(q_CND, k_PKSD)
    _grad_q[(C, K)](
        q_CND, k_PKSD, v_PKSD, out_CND, lse_CN, grad_CND, grad_q_CND, delta_CN, pages_CKJ, counts_CK, lengths_C,
        scale, pages_CKJ.shape[2],
        **sizes,
    )  # fmt: skip
    add_key_value_gradients(
        grad_CND, q_CND, k_PKSD, v_PKSD, lse_CN, delta_CN, pages_CKJ, counts_CK, lengths_C, scale,
        grad_k_PKSD, grad_v_PKSD,
    )  # fmt: skip
    return grad_q_CND


def _sizes(q_CND: torch.Tensor, k_PKSD: torch.Tensor) -> dict[str, int | bool]:
    _, N, D = q_CND.shape
    _, K, S, _ = k_PKSD.shape
    group = N // K
    return {
        "K": K,
        "G": group,
        "D": D,
        "S": S,
        "ROWS": max(16, triton.next_power_of_2(group)),
        "TILE": 32 if q_CND.element_size() > 2 else 64,
        "WIDEN": interpreted(),
        "num_warps": 4,
    }


@triton.jit
def _forward(
    q,
    k,
    v,
    out,
    lse,
    pages,
    counts,
    lengths,
    scale,
    J,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    c = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    count = tl.load(counts + c * K + head)
    length = tl.load(lengths + c)
    num_tokens = count * S - (tl.cdiv(length, S) * S - length)
    num_tokens = tl.where(count > 0, num_tokens, 0)
    g_G = tl.arange(0, ROWS)
    dims = tl.arange(0, D)
    row_G = (c * K + head) * G + g_G
    live_G1 = (g_G < G)[:, None]
    at_GD = row_G[:, None] * D + dims[None, :]
    q_GD = tl.load(q + at_GD, mask=live_G1, other=0.0)
    page_row = pages + (c * K + head) * J

    maximum_G = tl.full([ROWS], _FLOOR, tl.float32)
    sum_G = tl.zeros([ROWS], tl.float32)
    acc_GD = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, num_tokens, TILE):
        token_T = start + tl.arange(0, TILE)
        live_T = token_T < num_tokens
        page_T = tl.load(page_row + token_T // S, mask=live_T, other=0).to(tl.int64)
        at_TD = ((page_T * K + head) * S + token_T % S)[:, None] * D + dims[None, :]
        k_TD = tl.load(k + at_TD, mask=live_T[:, None], other=0.0)
        v_TD = tl.load(v + at_TD, mask=live_T[:, None], other=0.0)
        score_GT = dot(q_GD, tl.trans(k_TD), tl.zeros([ROWS, TILE], tl.float32), WIDEN) * scale
        score_GT = tl.where(live_T[None, :], score_GT, -float("inf"))
        new_maximum_G = tl.maximum(maximum_G, tl.max(score_GT, 1))
        weight_GT = tl.exp2(score_GT - new_maximum_G[:, None])
        decay_G = tl.exp2(maximum_G - new_maximum_G)
        sum_G = sum_G * decay_G + tl.sum(weight_GT, 1)
        acc_GD = dot(weight_GT.to(v_TD.dtype), v_TD, acc_GD * decay_G[:, None], WIDEN)
        maximum_G = new_maximum_G
    empty = num_tokens == 0
    safe_G = tl.where(empty, 1.0, sum_G)
    tl.store(out + at_GD, (acc_GD / safe_G[:, None]).to(out.dtype.element_ty), mask=live_G1)
    lse_G = tl.where(empty, -float("inf"), (maximum_G + tl.log2(safe_G)) * _LN_2)
    tl.store(lse + row_G, lse_G, mask=g_G < G)


@triton.jit
def _grad_q(
    q,
    k,
    v,
    out,
    lse,
    grad,
    grad_q,
    delta,
    pages,
    counts,
    lengths,
    scale,
    J,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    c = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    count = tl.load(counts + c * K + head)
    length = tl.load(lengths + c)
    num_tokens = count * S - (tl.cdiv(length, S) * S - length)
    num_tokens = tl.where(count > 0, num_tokens, 0)
    g_G = tl.arange(0, ROWS)
    dims = tl.arange(0, D)
    row_G = (c * K + head) * G + g_G
    live_G1 = (g_G < G)[:, None]
    at_GD = row_G[:, None] * D + dims[None, :]
    q_GD = tl.load(q + at_GD, mask=live_G1, other=0.0)
    grad_GD = tl.load(grad + at_GD, mask=live_G1, other=0.0)
    out_GD = tl.load(out + at_GD, mask=live_G1, other=0.0)
    delta_G = tl.sum(grad_GD.to(tl.float32) * out_GD.to(tl.float32), 1)
    tl.store(delta + row_G, delta_G, mask=g_G < G)
    lse_G = tl.load(lse + row_G, mask=g_G < G, other=0.0) * _LOG2_E
    page_row = pages + (c * K + head) * J

    acc_GD = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, num_tokens, TILE):
        token_T = start + tl.arange(0, TILE)
        live_T = token_T < num_tokens
        page_T = tl.load(page_row + token_T // S, mask=live_T, other=0).to(tl.int64)
        at_TD = ((page_T * K + head) * S + token_T % S)[:, None] * D + dims[None, :]
        k_TD = tl.load(k + at_TD, mask=live_T[:, None], other=0.0)
        v_TD = tl.load(v + at_TD, mask=live_T[:, None], other=0.0)
        zero_GT = tl.zeros([ROWS, TILE], tl.float32)
        score_GT = dot(q_GD, tl.trans(k_TD), zero_GT, WIDEN) * (scale * _LOG2_E)
        weight_GT = tl.where(live_T[None, :], tl.exp2(score_GT - lse_G[:, None]), 0.0)
        grad_weight_GT = dot(grad_GD, tl.trans(v_TD), zero_GT, WIDEN)
        grad_score_GT = weight_GT * (grad_weight_GT - delta_G[:, None])
        acc_GD = dot(grad_score_GT.to(k_TD.dtype), k_TD, acc_GD, WIDEN)
    tl.store(grad_q + at_GD, (acc_GD * scale).to(grad_q.dtype.element_ty), mask=live_G1)
