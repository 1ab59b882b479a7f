"""Page scoring and selection in Triton: one launch, budgets and lengths read on the device, exact, ties by the rule.

Shapes follow the legend of ``sparrow_core.cache``; the rule is that of ``sparrow_kernels.select_pages.naive``.
Scores become unsigned integers of the same order; the score of the last page kept is found exactly, two bits at a time,
by counting; one running sum then places the kept pages in ascending logical order.

``select_by_landmarks`` scores and selects: a fixed grid shares the landmark scan (``sparrow_kernels.work_split``), and
the last program to finish a row selects its pages while others still scan.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl

from sparrow_kernels.work_split import (
    active_programs,
    last_to_arrive,
    num_programs,
    pick,
    program_of_unit,
    program_start,
)

ScoreKind = Literal["mean", "quest"]

_FORCED = tl.constexpr(0xFFFFFFFF)
"""Key of a forced page, above that of any score."""
_MAX_BLOCK = 4096
"""Pages of a row that are held in registers; longer rows are read again for every digit."""


@dataclass(frozen=True, slots=True)
class SelectWorkspace:
    """Scratch of ``select_by_landmarks``; one per stream, reusable by calls of its size or smaller."""

    scores: torch.Tensor
    """float32 ``[B * K * W]``."""
    arrivals: torch.Tensor
    """int32 zeros ``[B * K]``; every launch leaves zeros behind."""


@dataclass(frozen=True, slots=True)
class SelectTuning:
    """How the scan is cut; has no influence on results."""

    chunk: int
    """Pages scored per step of a program."""
    num_warps: int
    per_processor: int
    """Programs per multiprocessor."""


def tuning_for(head_dim: int, vectors: int) -> SelectTuning:
    """The tuning by bytes per page."""
    return SelectTuning(chunk=max(16, 8192 // (head_dim * vectors)), num_warps=4, per_processor=8)


def select_workspace(num_rows: int, width: int, device: torch.device) -> SelectWorkspace:
    """Scratch for up to ``num_rows = B * K`` rows of ``width`` pages."""
    return SelectWorkspace(
        scores=torch.empty(num_rows * width, dtype=torch.float32, device=device),
        arrivals=torch.zeros(num_rows, dtype=torch.int32, device=device),
    )


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
    """Pages per sequence and KV head from given float32 scores; see ``naive.select_pages``."""
    B, K, W = scores_BKW.shape
    assert scores_BKW.dtype == torch.float32
    assert scores_BKW.is_contiguous()
    pages_BKJ, counts_BK = _results(B, K, max_selected, scores_BKW.device)
    _select[(K, B)](
        scores_BKW,
        page_table_BW,
        lengths_B,
        budgets_B,
        pages_BKJ,
        counts_BK,
        page_table_BW.stride(0),
        W,
        max_selected,
        K=K,
        S=page_size,
        SINK=sink_pages,
        RECENT=recent_pages,
        BLOCK=_block(W),
        ONE_BLOCK=_block(W) >= W,
        num_warps=4,
    )
    return pages_BKJ, counts_BK


def select_by_landmarks(
    q_BND: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    budgets_B: torch.Tensor,
    *,
    kind: ScoreKind = "mean",
    page_size: int,
    sink_pages: int,
    recent_pages: int,
    max_selected: int,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    workspace: SelectWorkspace | None = None,
    tuning: SelectTuning | None = None,
    programs: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``naive.select_pages`` of ``page_scores.naive.mean_landmark`` or ``quest``, fused.

    Args:
        kind: "mean": mean query of the group against landmark 0. "quest": landmarks 0 and 1 are minimum and maximum.
        out: int32 pages ``[B, K, J]`` and counts ``[B, K]``, written in place where given.
        programs: grid size, by default ``tuning.per_processor`` for each multiprocessor.

    Returns:
        int32 physical pages ``[B, K, J]`` in ascending logical order, 0 past the count, and int32 counts ``[B, K]``.
    """
    B, N, D = q_BND.shape
    _, K, M, _ = landmarks_PKMD.shape
    W = page_table_BW.shape[1]
    vectors = {"mean": 1, "quest": 2}[kind]
    assert vectors <= M
    assert landmarks_PKMD.stride()[1:] == (M * D, D, 1), "landmarks must be contiguous"
    assert q_BND.stride(2) == 1
    assert page_table_BW.stride(1) == 1
    tuning = tuning or tuning_for(D, vectors)
    programs = programs or num_programs(q_BND.device, tuning.per_processor)
    workspace = workspace or select_workspace(B * K, W, q_BND.device)
    pages_BKJ, counts_BK = out or _results(B, K, max_selected, q_BND.device)
    group = N // K
    _score_and_select[(programs,)](
        q_BND,
        landmarks_PKMD,
        page_table_BW,
        lengths_B,
        budgets_B,
        workspace.scores,
        workspace.arrivals,
        pages_BKJ,
        counts_BK,
        *q_BND.stride()[:2],
        landmarks_PKMD.stride(0),
        page_table_BW.stride(0),
        B,
        W,
        max_selected,
        K=K,
        G=group,
        GROUP=triton.next_power_of_2(group),
        M=M,
        D=D,
        S=page_size,
        SINK=sink_pages,
        RECENT=recent_pages,
        ROWS=max(64, triton.next_power_of_2(B)),
        CHUNK=tuning.chunk,
        BLOCK=_block(W),
        ONE_BLOCK=_block(W) >= W,
        QUEST=kind == "quest",
        num_warps=tuning.num_warps,
    )
    return pages_BKJ, counts_BK


def _results(B: int, K: int, J: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    pages_BKJ = torch.empty(B, K, J, dtype=torch.int32, device=device)
    return pages_BKJ, torch.empty(B, K, dtype=torch.int32, device=device)


def _block(width: int) -> int:
    return min(_MAX_BLOCK, max(128, int(triton.next_power_of_2(width))))


@triton.jit
def _select(
    scores,
    table,
    lengths,
    budgets,
    pages,
    counts,
    table_b,
    width,
    max_selected,
    K: tl.constexpr,
    S: tl.constexpr,
    SINK: tl.constexpr,
    RECENT: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
):
    b = tl.program_id(1)
    row = (b * K + tl.program_id(0)).to(tl.int64)
    num_pages = (tl.load(lengths + b) + S - 1) // S
    budget = tl.minimum(tl.load(budgets + b), max_selected)
    _select_row(
        scores + row * width,
        table + b.to(tl.int64) * table_b,
        pages + row * max_selected,
        counts + row,
        num_pages,
        budget,
        max_selected,
        SINK,
        RECENT,
        BLOCK,
        ONE_BLOCK,
    )


@triton.jit
def _score_and_select(
    q,
    landmarks,
    table,
    lengths,
    budgets,
    scores,
    arrivals,
    pages,
    counts,
    q_b,
    q_n,
    landmarks_page,
    table_b,
    num_sequences,
    width,
    max_selected,
    K: tl.constexpr,
    G: tl.constexpr,
    GROUP: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    SINK: tl.constexpr,
    RECENT: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    QUEST: tl.constexpr,
):
    sequences = tl.arange(0, ROWS)
    exists = sequences < num_sequences
    all_pages = (tl.load(lengths + sequences, mask=exists, other=0) + S - 1) // S
    all_budgets = tl.minimum(tl.load(budgets + sequences, mask=exists, other=0), max_selected)
    scored = tl.where(all_pages <= all_budgets, 0, tl.maximum(all_pages - RECENT, 0))
    units = tl.where(exists, tl.maximum((scored + CHUNK - 1) // CHUNK, 1), 0)
    ends = tl.cumsum(units, 0) * K
    total = tl.sum(units, 0) * K
    programs = active_programs(total, tl.num_programs(0), 1)
    program = tl.program_id(0)
    if program >= programs:
        return
    unit = program_start(program, total, programs)
    stop = program_start(program + 1, total, programs)
    dims = tl.arange(0, D)
    while unit < stop:
        b = tl.sum((ends <= unit).to(tl.int32), 0)
        row_units = pick(units, sequences, b)
        row_scored = pick(scored, sequences, b)
        offset = unit - (pick(ends, sequences, b) - row_units * K)
        head = offset // row_units
        first = unit - offset % row_units
        end = tl.minimum(stop, first + row_units)
        row = (b * K + head).to(tl.int64)
        table_row = table + b.to(tl.int64) * table_b
        q_head = q + b.to(tl.int64) * q_b + head * G * q_n
        mark_head = landmarks + head * (M * D)
        mean_D = _mean_query(q_head, q_n, G, GROUP, D)
        for at in range(unit - first, end - first):
            page_C = at * CHUNK + tl.arange(0, CHUNK)
            live_C = page_C < row_scored
            physical_C = tl.load(table_row + page_C, mask=live_C, other=0).to(tl.int64)
            mark_CD = mark_head + physical_C[:, None] * landmarks_page + dims[None, :]
            low_CD = tl.load(mark_CD).to(tl.float32)
            if QUEST:
                high_CD = tl.load(mark_CD + D).to(tl.float32)
                score_C = tl.full([CHUNK], -float("inf"), tl.float32)
                for g in tl.static_range(G):
                    q_D = tl.load(q_head + g * q_n + dims).to(tl.float32)
                    bound_CD = tl.where(q_D[None, :] > 0, high_CD, low_CD) * q_D[None, :]
                    score_C = tl.maximum(score_C, tl.sum(bound_CD, 1))
            else:
                score_C = tl.sum(low_CD * mean_D[None, :], 1)
            tl.store(scores + row * width + page_C, score_C, mask=live_C)
        first_program = program_of_unit(first, total, programs)
        pieces = program_of_unit(first + row_units - 1, total, programs) - first_program + 1
        if last_to_arrive(arrivals, row, pieces):
            _select_row(
                scores + row * width,
                table_row,
                pages + row * max_selected,
                counts + row,
                pick(all_pages, sequences, b),
                pick(all_budgets, sequences, b),
                max_selected,
                SINK,
                RECENT,
                BLOCK,
                ONE_BLOCK,
            )
        unit = end


@triton.jit
def _mean_query(q_head, q_n, G: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr):
    group = tl.arange(0, GROUP)
    dims = tl.arange(0, D)
    q_GD = tl.load(q_head + group[:, None] * q_n + dims[None, :], mask=group[:, None] < G, other=0.0)
    return tl.sum(q_GD.to(tl.float32), 0) / G


@triton.jit
def _keys(scores_row, start, num_pages, recent, sink, BLOCK: tl.constexpr):
    """Unsigned integers in the order of the scores; forced pages above all, pages past the end 0, below all."""
    page_W = start + tl.arange(0, BLOCK)
    exists_W = page_W < num_pages
    forced_W = exists_W & ((page_W >= num_pages - recent) | (page_W < sink))
    score_W = tl.load(scores_row + page_W, mask=exists_W & (forced_W == 0), other=-float("inf"), cache_modifier=".cg")
    score_W = tl.where(score_W == score_W, score_W, -float("inf"))
    score_W = tl.where(score_W == 0.0, 0.0, score_W)
    bits_W = score_W.to(tl.uint32, bitcast=True)
    key_W = tl.where((bits_W >> 31) != 0, ~bits_W, bits_W | 0x80000000)
    return tl.where(forced_W, _FORCED, tl.where(exists_W, key_W, 0).to(tl.uint32)).to(tl.uint32)


@triton.jit
def _at_least(key_W, threshold, step):
    """How many keys reach each of three thresholds a step apart, in 21 bits each."""
    one = (key_W >= threshold + step).to(tl.int64)
    two = (key_W >= threshold + 2 * step).to(tl.int64)
    three = (key_W >= threshold + 3 * step).to(tl.int64)
    return tl.sum(one + (two << 21) + (three << 42), 0)


@triton.jit
def _select_row(
    scores_row,
    table_row,
    pages_row,
    count_at,
    num_pages,
    budget,
    max_selected,
    SINK: tl.constexpr,
    RECENT: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
):
    every = num_pages <= budget
    kept = tl.minimum(num_pages, budget)
    recent = tl.where(every, num_pages, tl.minimum(budget, RECENT))
    sink = tl.minimum(tl.maximum(budget - recent, 0), SINK)
    key_W = _keys(scores_row, 0, num_pages, recent, sink, BLOCK)

    threshold = tl.full([], 0, tl.uint32)
    if every | (kept <= recent + sink):
        threshold = tl.full([], 0xFFFFFFFF, tl.uint32)
    else:
        step = tl.full([], 1 << 30, tl.uint32)
        for _ in range(16):
            packed = _at_least(key_W, threshold, step)
            if not ONE_BLOCK:
                for start in range(BLOCK, num_pages, BLOCK):
                    more_W = _keys(scores_row, start, num_pages, recent, sink, BLOCK)
                    packed += _at_least(more_W, threshold, step)
            digit = ((packed & 0x1FFFFF) >= kept).to(tl.uint32)
            digit += (((packed >> 21) & 0x1FFFFF) >= kept).to(tl.uint32)
            digit += ((packed >> 42) >= kept).to(tl.uint32)
            threshold += digit * step
            step = step >> 2

    above = tl.sum((key_W > threshold).to(tl.int32), 0)
    if not ONE_BLOCK:
        for start in range(BLOCK, num_pages, BLOCK):
            more_W = _keys(scores_row, start, num_pages, recent, sink, BLOCK)
            above += tl.sum((more_W > threshold).to(tl.int32), 0)
    ties = kept - above

    placed_above, placed_ties = _place(key_W, threshold, 0, 0, 0, ties, num_pages, table_row, pages_row, BLOCK)
    if not ONE_BLOCK:
        for start in range(BLOCK, num_pages, BLOCK):
            more_W = _keys(scores_row, start, num_pages, recent, sink, BLOCK)
            more_above, more_ties = _place(
                more_W, threshold, start, placed_above, placed_ties, ties, num_pages, table_row, pages_row, BLOCK
            )
            placed_above += more_above
            placed_ties += more_ties
    tl.store(count_at, kept)
    for start in range(0, max_selected, BLOCK):
        rest = start + tl.arange(0, BLOCK)
        tl.store(pages_row + rest, tl.zeros([BLOCK], tl.int32), mask=(rest >= kept) & (rest < max_selected))


@triton.jit
def _place(
    key_W,
    threshold,
    start,
    placed_above,
    placed_ties,
    ties,
    num_pages,
    table_row,
    pages_row,
    BLOCK: tl.constexpr,
):
    """Write the kept pages of one block; returns its numbers of keys above the threshold and equal to it."""
    page_W = start + tl.arange(0, BLOCK)
    above_W = (key_W > threshold).to(tl.int32)
    tie_W = (key_W == threshold).to(tl.int32)
    packed_W = tl.cumsum(above_W + (tie_W << 16), 0)
    above_before_W = (packed_W & 0xFFFF) - above_W + placed_above
    ties_before_W = (packed_W >> 16) - tie_W + placed_ties
    keep_W = (above_W != 0) | ((tie_W != 0) & (ties_before_W < ties))
    physical_W = tl.load(table_row + page_W, mask=keep_W & (page_W < num_pages), other=0)
    tl.store(pages_row + above_before_W + tl.minimum(ties_before_W, ties), physical_W, mask=keep_W)
    return tl.sum(above_W, 0), tl.sum(tie_W, 0)
