"""Writing to the paged cache in Triton: keys, values, landmarks of filled pages; QK-norm and RoPE fused for decode.

Shapes follow the legend of ``sparrow_core.cache``. Places are found on the device from lengths and page tables, so the
kernels can live in a captured graph. Landmarks come from the page's keys as stored, in float32, rounded once.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl

LandmarkKind = Literal["none", "mean", "min_max"]
"""What a filled page leaves: nothing, the mean of its keys (M = 1), or their minimum and maximum (M = 2)."""

LANDMARK_VECTORS: dict[LandmarkKind, int] = {"none": 0, "mean": 1, "min_max": 2}


@dataclass(frozen=True, slots=True)
class QKNormRope:
    """What turns projected queries and keys into those that attention uses: RMSNorm over the head, then RoPE.

    Both are computed in float32; the normed value is rounded to the model's dtype in between, as two modules would.
    """

    cos_sin_X2D: torch.Tensor
    """float32 ``[positions, 2 * D]``: cosines, then sines, each for the two halves of the head; rotate-half form."""
    q_weight_D: torch.Tensor | None = None
    """None: no QK-norm."""
    k_weight_D: torch.Tensor | None = None
    eps: float = 1e-6


def decode_append(
    k_BKD: torch.Tensor,
    v_BKD: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    landmark: LandmarkKind,
) -> None:
    """Write each sequence's newest key and value, at ``length - 1``, and the landmarks of pages this fills.

    Rows of length 0 write nothing.
    """
    B, K, _ = k_BKD.shape
    check_pools(k_PKSD, v_PKSD, landmarks_PKMD, landmark)
    _decode_append[(K, B)](
        k_BKD,
        k_BKD,
        v_BKD,
        k_BKD,
        k_BKD,
        k_BKD,
        k_BKD,
        k_PKSD,
        v_PKSD,
        landmarks_PKMD,
        page_table_BW,
        lengths_B,
        0.0,
        *(0, 0),
        *k_BKD.stride()[:2],
        *v_BKD.stride()[:2],
        *(0, 0),
        k_PKSD.stride(0),
        landmarks_PKMD.stride(0),
        page_table_BW.stride(0),
        **page_shape(k_PKSD, landmarks_PKMD, landmark),
        G=1,
        GROUP=1,
        ROPE=False,
        NORM=False,
        num_warps=2,
    )


def decode_norm_rope_append(
    q_BND: torch.Tensor,
    k_BKD: torch.Tensor,
    v_BKD: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    landmark: LandmarkKind,
    transform: QKNormRope,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``decode_append`` of the transformed key, and the transformed query.

    Args:
        q_BND, k_BKD, v_BKD: straight from the projection; any strides but along the head, so slices of one fused
            projection serve.

    Returns:
        ``[B, N, D]`` in the query's dtype (in ``out`` where given); zeros for rows of length 0.
    """
    B, N, D = q_BND.shape
    K = k_BKD.shape[1]
    check_pools(k_PKSD, v_PKSD, landmarks_PKMD, landmark)
    assert transform.cos_sin_X2D.is_contiguous()
    assert transform.cos_sin_X2D.shape[1] == 2 * D
    out = torch.empty(B, N, D, dtype=q_BND.dtype, device=q_BND.device) if out is None else out
    q_weight_D, k_weight_D = transform.q_weight_D, transform.k_weight_D
    assert (q_weight_D is None) == (k_weight_D is None), "norm both queries and keys or neither"
    _decode_append[(K, B)](
        q_BND,
        k_BKD,
        v_BKD,
        out,
        transform.cos_sin_X2D,
        q_BND if q_weight_D is None else q_weight_D,
        k_BKD if k_weight_D is None else k_weight_D,
        k_PKSD,
        v_PKSD,
        landmarks_PKMD,
        page_table_BW,
        lengths_B,
        transform.eps,
        *q_BND.stride()[:2],
        *k_BKD.stride()[:2],
        *v_BKD.stride()[:2],
        *out.stride()[:2],
        k_PKSD.stride(0),
        landmarks_PKMD.stride(0),
        page_table_BW.stride(0),
        **page_shape(k_PKSD, landmarks_PKMD, landmark),
        G=N // K,
        GROUP=triton.next_power_of_2(N // K),
        ROPE=True,
        NORM=q_weight_D is not None,
        num_warps=2,
    )
    return out


def write_landmarks(
    marks_BKMD: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    page_size: int,
) -> None:
    """Store each sequence's given landmarks at its last page where that page is full; other rows write nothing."""
    B, K, M, D = marks_BKMD.shape
    assert marks_BKMD.is_contiguous()
    assert landmarks_PKMD.stride()[1:] == (M * D, D, 1)
    _write_landmarks[(B,)](
        marks_BKMD,
        landmarks_PKMD,
        page_table_BW,
        lengths_B,
        landmarks_PKMD.stride(0),
        page_table_BW.stride(0),
        S=page_size,
        SIZE=K * M * D,
        BLOCK=triton.next_power_of_2(K * M * D),
        num_warps=4,
    )


def check_pools(
    k_PKSD: torch.Tensor, v_PKSD: torch.Tensor, landmarks_PKMD: torch.Tensor, landmark: LandmarkKind
) -> None:
    _, _, S, D = k_PKSD.shape
    assert k_PKSD.stride() == v_PKSD.stride(), "keys and values must lie alike"
    assert k_PKSD.stride()[1:] == (S * D, D, 1), "pages must be contiguous"
    assert LANDMARK_VECTORS[landmark] in (0, landmarks_PKMD.shape[2])


def page_shape(k_PKSD: torch.Tensor, landmarks_PKMD: torch.Tensor, landmark: LandmarkKind) -> dict[str, int]:
    _, _, S, D = k_PKSD.shape
    return {
        "D": D,
        "S": S,
        "SLOTS": triton.next_power_of_2(S),
        "M": landmarks_PKMD.shape[2],
        "VECTORS": LANDMARK_VECTORS[landmark],
    }


@triton.jit
def _decode_append(
    q,
    k,
    v,
    out,
    cos_sin,
    q_weight,
    k_weight,
    k_pool,
    v_pool,
    landmarks,
    table,
    lengths,
    eps,
    q_b,
    q_n,
    k_b,
    k_n,
    v_b,
    v_n,
    out_b,
    out_n,
    kv_page,
    landmarks_page,
    table_b,
    D: tl.constexpr,
    S: tl.constexpr,
    SLOTS: tl.constexpr,
    M: tl.constexpr,
    VECTORS: tl.constexpr,
    G: tl.constexpr,
    GROUP: tl.constexpr,
    ROPE: tl.constexpr,
    NORM: tl.constexpr,
):
    head = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    position = tl.load(lengths + b) - 1
    half = tl.arange(0, D // 2)
    group = tl.arange(0, GROUP)
    if position < 0:
        if ROPE:
            at_GH = out + b * out_b + (head * G + group)[:, None] * out_n + half[None, :]
            nothing = tl.zeros([GROUP, D // 2], out.dtype.element_ty)
            tl.store(at_GH, nothing, mask=group[:, None] < G)
            tl.store(at_GH + D // 2, nothing, mask=group[:, None] < G)
        return
    k_row = k + b * k_b + head * k_n
    one = tl.arange(0, 1)
    low_H, high_H = _halves(k_row, one, one < 1, 0, half, D)
    if ROPE:
        q_row = q + b * q_b + head * G * q_n
        q_low_GH, q_high_GH = _halves(q_row, group, group < G, q_n, half, D)
        if NORM:
            low_H, high_H = _normed(low_H, high_H, k_weight, half, eps, D, k.dtype.element_ty)
            q_low_GH, q_high_GH = _normed(q_low_GH, q_high_GH, q_weight, half, eps, D, q.dtype.element_ty)
        angles = cos_sin + position.to(tl.int64) * (2 * D)
        low_H, high_H = _rotated(low_H, high_H, angles, half, D)
        q_low_GH, q_high_GH = _rotated(q_low_GH, q_high_GH, angles, half, D)
        at_GH = out + b * out_b + (head * G + group)[:, None] * out_n + half[None, :]
        tl.store(at_GH, q_low_GH.to(out.dtype.element_ty), mask=group[:, None] < G)
        tl.store(at_GH + D // 2, q_high_GH.to(out.dtype.element_ty), mask=group[:, None] < G)
    stored = k_pool.dtype.element_ty
    low_H = low_H.to(k.dtype.element_ty).to(stored)
    high_H = high_H.to(k.dtype.element_ty).to(stored)

    page = tl.load(table + b * table_b + position // S).to(tl.int64)
    slot = position % S
    page_at = page * kv_page + head * (S * D)
    at_H = k_pool + page_at + slot * D + half[None, :]
    tl.store(at_H, low_H)
    tl.store(at_H + D // 2, high_H)
    dims = tl.arange(0, D)
    value_D = tl.load(v + b * v_b + head * v_n + dims)
    tl.store(v_pool + page_at + slot * D + dims, value_D.to(stored))

    if VECTORS > 0:  # noqa: SIM102  (settled when compiled)
        if slot == S - 1:
            marks = landmarks + page * landmarks_page + head * (M * D) + half
            keys = k_pool + page_at + half[None, :]
            _mark_with_last(keys, low_H, marks, D, S, SLOTS, VECTORS)
            _mark_with_last(keys + D // 2, high_H, marks + D // 2, D, S, SLOTS, VECTORS)


@triton.jit
def _halves(row, index, live, stride, half, D: tl.constexpr):
    """The two halves of some heads, float32 ``[X, D / 2]`` each."""
    at_XH = row + index[:, None] * stride + half[None, :]
    low_XH = tl.load(at_XH, mask=live[:, None], other=0.0).to(tl.float32)
    high_XH = tl.load(at_XH + D // 2, mask=live[:, None], other=0.0).to(tl.float32)
    return low_XH, high_XH


@triton.jit
def _normed(low_XH, high_XH, weight, half, eps, D: tl.constexpr, DTYPE: tl.constexpr):
    square_X = tl.sum(low_XH * low_XH, 1) + tl.sum(high_XH * high_XH, 1)
    inverse_X1 = tl.rsqrt(square_X / D + eps)[:, None]
    low_XH = low_XH * inverse_X1 * tl.load(weight + half)[None, :].to(tl.float32)
    high_XH = high_XH * inverse_X1 * tl.load(weight + D // 2 + half)[None, :].to(tl.float32)
    return low_XH.to(DTYPE).to(tl.float32), high_XH.to(DTYPE).to(tl.float32)


@triton.jit
def _rotated(low_XH, high_XH, angles, half, D: tl.constexpr):
    cos_low_H = tl.load(angles + half)[None, :]
    cos_high_H = tl.load(angles + D // 2 + half)[None, :]
    sin_low_H = tl.load(angles + D + half)[None, :]
    sin_high_H = tl.load(angles + D + D // 2 + half)[None, :]
    return low_XH * cos_low_H - high_XH * sin_low_H, high_XH * cos_high_H + low_XH * sin_high_H


@triton.jit
def _mark_with_last(keys, last_1H, marks, D: tl.constexpr, S: tl.constexpr, SLOTS: tl.constexpr, VECTORS: tl.constexpr):
    """Landmarks of half the channels of a page whose last key this program just wrote, and so takes from registers."""
    slots = tl.arange(0, SLOTS)[:, None]
    key_SH = tl.load(keys + slots * D, mask=slots < S - 1, other=0.0)
    key_SH = tl.where(slots == S - 1, last_1H.to(key_SH.dtype), key_SH).to(tl.float32)
    write_marks(key_SH, slots < S, marks, D, S, VECTORS)


@triton.jit
def write_marks(key_SH, live_S1, marks, D: tl.constexpr, S: tl.constexpr, VECTORS: tl.constexpr):
    if VECTORS == 1:
        mean_H = tl.sum(tl.where(live_S1, key_SH, 0.0), 0) / S
        tl.store(marks, mean_H.to(marks.dtype.element_ty))
    else:
        low_H = tl.min(tl.where(live_S1, key_SH, float("inf")), 0)
        high_H = tl.max(tl.where(live_S1, key_SH, -float("inf")), 0)
        tl.store(marks, low_H.to(marks.dtype.element_ty))
        tl.store(marks + D, high_H.to(marks.dtype.element_ty))


@triton.jit
def _write_landmarks(
    marks, landmarks, table, lengths, landmarks_page, table_b, S: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + b)
    if (length == 0) | (length % S != 0):
        return
    page = tl.load(table + b * table_b + length // S - 1).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(marks + b * SIZE + at, mask=at < SIZE)
    tl.store(landmarks + page * landmarks_page + at, values.to(landmarks.dtype.element_ty), mask=at < SIZE)
