"""Paged decode attention in Triton: split over the KV pages, one launch, lengths and counts read on the device.

Shapes follow the legend of ``sparrow_core.cache``. Rows (one per sequence and KV head) are cut into tiles of tokens
that a fixed grid of programs shares evenly, whatever the lengths (``sparrow_kernels.work_split``). A program keeps an
online softmax (base 2) per row it meets; where a row is shared, the last program to arrive merges the pieces in a fixed
order, so a repeated launch gives the same bits.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sparrow_kernels.jit_math import dot, interpreted
from sparrow_kernels.work_split import (
    active_programs,
    last_to_arrive,
    num_programs,
    pick,
    program_of_unit,
    program_start,
)

LOG2_E = 1.4426950408889634
_LN_2 = tl.constexpr(0.6931471805599453)
_FLOOR = tl.constexpr(-1e30)
"""Below any score, yet finite: the running maximum of a row that has seen no token."""


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """How the kernel is cut; results differ between tunings by rounding only."""

    tile: int
    """Tokens per step of a program."""
    num_warps: int
    num_stages: int
    per_processor: int
    """Programs per multiprocessor."""
    min_tiles: int = 2
    """Fewest tiles worth a program of its own."""


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """Scratch of ``paged_decode``; one per stream, reusable by calls of its size or smaller."""

    partial: torch.Tensor
    """float32: outputs ``[pieces, G, D]``, then maxima ``[pieces, G]``, then sums ``[pieces, G]``."""
    arrivals: torch.Tensor
    """int32 zeros ``[rows]``; every launch leaves zeros behind."""


def tuning_for(head_dim: int, dtype: torch.dtype, *, dense: bool) -> DecodeTuning:
    """The tuning by bytes per token: a table, so that results never depend on a timing."""
    bytes_per_token = head_dim * dtype.itemsize
    if dense:
        return DecodeTuning(tile=_tile(16384 // bytes_per_token), num_warps=4, num_stages=3, per_processor=2)
    return DecodeTuning(tile=_tile(8192 // bytes_per_token), num_warps=4, num_stages=3, per_processor=3)


def _tile(tokens: int) -> int:
    return min(128, max(16, tokens))


def decode_workspace(
    num_rows: int, group_size: int, head_dim: int, device: torch.device, programs: int
) -> DecodeWorkspace:
    """Scratch for up to ``num_rows = B * K`` rows and ``programs`` programs."""
    pieces = num_rows + programs
    return DecodeWorkspace(
        partial=torch.empty(pieces * group_size * (head_dim + 2), dtype=torch.float32, device=device),
        arrivals=torch.zeros(num_rows, dtype=torch.int32, device=device),
    )


def paged_decode(
    q_BND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    pages_BKJ: torch.Tensor,
    counts_BK: torch.Tensor | None,
    lengths_B: torch.Tensor,
    scale: float,
    *,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    workspace: DecodeWorkspace | None = None,
    tuning: DecodeTuning | None = None,
    programs: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query per sequence over its selected pages; see ``naive.paged_decode``.

    Args:
        pages_BKJ: any strides; a page table expanded over K serves dense attention.
        counts_BK: None for all ``ceil(length / S)`` pages.
        out, lse: results, written in place where given.
        programs: grid size, by default ``tuning.per_processor`` for each multiprocessor.

    Returns:
        ``[B, N, D]`` in the query's dtype and the natural-log LSE ``[B, N]`` in float32. Entries of ``pages_BKJ`` past
        the count and slots past a sequence's end are never read into the result. An empty row gives zeros and -inf.
    """
    B, N, D = q_BND.shape
    _, K, S, _ = k_PKSD.shape
    assert k_PKSD.stride()[1:] == v_PKSD.stride()[1:] == (S * D, D, 1), "pages must be contiguous"
    assert k_PKSD.stride(0) == v_PKSD.stride(0), "keys and values must lie alike"
    assert q_BND.stride(2) == 1
    assert pages_BKJ.dtype == lengths_B.dtype == torch.int32
    tuning = tuning or tuning_for(D, k_PKSD.dtype, dense=counts_BK is None)
    programs = programs or num_programs(q_BND.device, tuning.per_processor)
    out = torch.empty(B, N, D, dtype=q_BND.dtype, device=q_BND.device) if out is None else out
    lse = torch.empty(B, N, dtype=torch.float32, device=q_BND.device) if lse is None else lse
    workspace = workspace or decode_workspace(B * K, N // K, D, q_BND.device, programs)
    counts = lengths_B if counts_BK is None else counts_BK
    group_rows = triton.next_power_of_2(N // K)
    _decode[(programs,)](
        q_BND,
        k_PKSD,
        v_PKSD,
        pages_BKJ,
        counts,
        lengths_B,
        out,
        lse,
        workspace.partial,
        workspace.arrivals,
        scale * LOG2_E,
        B * K,
        B * K + programs,
        *q_BND.stride()[:2],
        *pages_BKJ.stride(),
        *((0, 0) if counts_BK is None else counts_BK.stride()),
        k_PKSD.stride(0),
        *out.stride()[:2],
        K=K,
        G=N // K,
        D=D,
        S=S,
        TILE=tuning.tile,
        ROWS=max(128, triton.next_power_of_2(B * K)),
        GROUP_DOT=max(16, group_rows),
        GROUP=group_rows,
        MERGE=max(1, 4096 // (group_rows * D)),
        MIN_TILES=tuning.min_tiles,
        STAGES=tuning.num_stages,
        DENSE=counts_BK is None,
        WIDEN=interpreted(),
        num_warps=tuning.num_warps,
    )
    return out, lse


@triton.jit
def _decode(
    q,
    k,
    v,
    pages,
    counts,
    lengths,
    out,
    lse,
    partial,
    arrivals,
    scale,
    num_rows,
    num_pieces,
    q_b,
    q_n,
    pages_b,
    pages_k,
    pages_j,
    counts_b,
    counts_k,
    kv_page,
    out_b,
    out_n,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP_DOT: tl.constexpr,
    GROUP: tl.constexpr,
    MERGE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    STAGES: tl.constexpr,
    DENSE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    rows = tl.arange(0, ROWS)
    length = tl.load(lengths + rows // K, mask=rows < num_rows, other=0)
    num_pages = (length + S - 1) // S
    count = num_pages
    if not DENSE:
        count = tl.load(counts + rows // K * counts_b + rows % K * counts_k, mask=rows < num_rows, other=0)
    tokens = tl.maximum(count * S - (num_pages * S - length), 0)
    tiles = tl.where(rows < num_rows, tl.maximum((tokens + TILE - 1) // TILE, 1), 0)
    ends = tl.cumsum(tiles, 0)
    total = tl.sum(tiles, 0)
    programs = active_programs(total, tl.num_programs(0), MIN_TILES)
    program = tl.program_id(0)
    if program >= programs:
        return
    tile = program_start(program, total, programs)
    stop = program_start(program + 1, total, programs)
    row = tl.sum((ends <= tile).to(tl.int32), 0)
    group = tl.arange(0, GROUP_DOT)
    dims = tl.arange(0, D)
    while tile < stop:
        end = pick(ends, rows, row)
        first = end - pick(tiles, rows, row)
        row_tokens = pick(tokens, rows, row)
        b = (row // K).to(tl.int64)
        head = row % K
        heads = head * G + group
        q_GD = tl.load(q + b * q_b + heads[:, None] * q_n + dims[None, :], mask=group[:, None] < G, other=0.0)
        pages_row = pages + b * pages_b + head * pages_k
        maximum_G = tl.full([GROUP_DOT], _FLOOR, tl.float32)
        sum_G = tl.zeros([GROUP_DOT], tl.float32)
        acc_GD = tl.zeros([GROUP_DOT, D], tl.float32)
        token_T = (tile - first) * TILE + tl.arange(0, TILE)
        page_T = tl.load(pages_row + token_T // S * pages_j, mask=token_T < row_tokens, other=0)
        for _ in tl.range(tl.minimum(stop, end) - tile, num_stages=STAGES):
            live_T = token_T < row_tokens
            offset_T = page_T.to(tl.int64) * kv_page + head * (S * D) + token_T % S * D
            token_T += TILE
            page_T = tl.load(pages_row + token_T // S * pages_j, mask=token_T < row_tokens, other=0)
            k_TD = tl.load(k + offset_T[:, None] + dims[None, :])
            v_TD = tl.load(v + offset_T[:, None] + dims[None, :], mask=live_T[:, None], other=0.0)
            score_GT = dot(q_GD, tl.trans(k_TD), tl.zeros([GROUP_DOT, TILE], tl.float32), WIDEN) * scale
            score_GT = tl.where(live_T[None, :], score_GT, -float("inf"))
            new_maximum_G = tl.maximum(maximum_G, tl.max(score_GT, 1))
            weight_GT = tl.exp2(score_GT - new_maximum_G[:, None])
            decay_G = tl.exp2(maximum_G - new_maximum_G)
            sum_G = sum_G * decay_G + tl.sum(weight_GT, 1)
            acc_GD = dot(weight_GT.to(v_TD.dtype), v_TD, acc_GD * decay_G[:, None], WIDEN)
            maximum_G = new_maximum_G
        first_program = program_of_unit(first, total, programs)
        pieces = program_of_unit(end - 1, total, programs) - first_program + 1
        out_row = out + b * out_b + head * G * out_n
        lse_row = lse + b * (K * G) + head * G
        if pieces == 1:
            _store(out_row, lse_row, out_n, acc_GD, maximum_G, sum_G, group, dims, G)
        else:
            at_G = (row + program) * G + group
            tl.store(partial + at_G[:, None] * D + dims[None, :], acc_GD, mask=group[:, None] < G)
            tl.store(partial + num_pieces * G * D + at_G, maximum_G, mask=group < G)
            tl.store(partial + num_pieces * G * (D + 1) + at_G, sum_G, mask=group < G)
            if last_to_arrive(arrivals, row, pieces):
                _merge(partial, num_pieces, row + first_program, pieces, out_row, lse_row, out_n, G, GROUP, D, MERGE)
        tile = tl.minimum(stop, end)
        row += 1


@triton.jit
def _merge(
    partial,
    num_pieces,
    first,
    pieces,
    out_row,
    lse_row,
    out_n,
    G: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    MERGE: tl.constexpr,
):
    """Attention of one row from its pieces, ``MERGE`` of them at a time. Loads pass by the first-level cache."""
    group = tl.arange(0, GROUP)
    dims = tl.arange(0, D)
    maximum_G = tl.full([GROUP], _FLOOR, tl.float32)
    sum_G = tl.zeros([GROUP], tl.float32)
    acc_GD = tl.zeros([GROUP, D], tl.float32)
    for start in tl.range(0, pieces, MERGE):
        piece_R = start + tl.arange(0, MERGE)
        at_RG = (first + piece_R[:, None]) * G + group[None, :]
        live_RG = (piece_R[:, None] < pieces) & (group[None, :] < G)
        piece_acc_RGD = tl.load(
            partial + at_RG[:, :, None] * D + dims[None, None, :],
            mask=live_RG[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        piece_maximum_RG = tl.load(
            partial + num_pieces * G * D + at_RG, mask=live_RG, other=_FLOOR, cache_modifier=".cg"
        )
        piece_sum_RG = tl.load(
            partial + num_pieces * G * (D + 1) + at_RG, mask=live_RG, other=0.0, cache_modifier=".cg"
        )
        new_maximum_G = tl.maximum(maximum_G, tl.max(piece_maximum_RG, 0))
        decay_G = tl.exp2(maximum_G - new_maximum_G)
        weight_RG = tl.exp2(piece_maximum_RG - new_maximum_G[None, :])
        sum_G = sum_G * decay_G + tl.sum(piece_sum_RG * weight_RG, 0)
        acc_GD = acc_GD * decay_G[:, None] + tl.sum(piece_acc_RGD * weight_RG[:, :, None], 0)
        maximum_G = new_maximum_G
    _store(out_row, lse_row, out_n, acc_GD, maximum_G, sum_G, group, dims, G)


@triton.jit
def _store(
    out_row,
    lse_row,
    out_n,
    acc_GD,
    maximum_G,
    sum_G,
    group,
    dims,
    G: tl.constexpr,
):
    empty_G = sum_G == 0.0
    safe_G = tl.where(empty_G, 1.0, sum_G)
    lse_G = tl.where(empty_G, -float("inf"), (maximum_G + tl.log2(safe_G)) * _LN_2)
    out_GD = (acc_GD / safe_G[:, None]).to(out_row.dtype.element_ty)
    tl.store(out_row + group[:, None] * out_n + dims[None, :], out_GD, mask=group[:, None] < G)
    tl.store(lse_row + group, lse_G, mask=group < G)
