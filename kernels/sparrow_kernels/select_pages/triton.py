"""Page scoring and selection in Triton: one launch, budgets and lengths read on the device, exact, ties by the rule.

Shapes follow the legend of ``sparrow_core.cache``; the rule is that of ``sparrow_kernels.select_pages.naive``.
Scores become unsigned integers of the same order. A score that parts the pages kept from the rest is found by counting,
two bits of it at a time and no more bits than needed; one running sum then places the kept pages in logical order.

``select_by_landmarks`` scores and selects: many small programs scan the landmarks, and the last one to finish a row (a
sequence and KV head) selects its pages while other rows are still scanned.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl

from sparrow_kernels.work_split import last_to_arrive

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
    """Pages scored at once by a program."""
    steps: int
    """Chunks per program, one after another."""
    num_warps: int


def tuning_for(head_dim: int, vectors: int) -> SelectTuning:
    """The tuning by bytes per page."""
    return SelectTuning(chunk=max(16, 8192 // (head_dim * vectors)), steps=2, num_warps=4)


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """``naive.select_pages`` of ``page_scores.naive.mean_landmark`` or ``quest``, fused.

    Args:
        kind: "mean": mean query of the group against landmark 0. "quest": landmarks 0 and 1 are minimum and maximum.
        out: int32 pages ``[B, K, J]`` and counts ``[B, K]``, written in place where given.

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
    workspace = workspace or select_workspace(B * K, W, q_BND.device)
    pages_BKJ, counts_BK = out or _results(B, K, max_selected, q_BND.device)
    group = N // K
    splits = triton.cdiv(W, tuning.chunk * tuning.steps)
    _score_and_select[(splits, B * K)](
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
        CHUNK=tuning.chunk,
        STEPS=tuning.steps,
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
    CHUNK: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    QUEST: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    b = row // K
    head = row % K
    table_row = table + b * table_b
    page_C = tl.program_id(0) * (CHUNK * STEPS) + tl.arange(0, CHUNK)
    physical_C = tl.load(table_row + page_C, mask=page_C < width, other=0)
    num_pages = (tl.load(lengths + b) + S - 1) // S
    budget = tl.minimum(tl.load(budgets + b), max_selected)
    q_head = q + b * q_b + head * G * q_n
    mean_D = _mean_query(q_head, q_n, G, GROUP, D)
    scored = tl.where(num_pages <= budget, 0, tl.maximum(num_pages - RECENT, 0))
    pieces = tl.maximum((scored + (CHUNK * STEPS - 1)) // (CHUNK * STEPS), 1)
    if tl.program_id(0) >= pieces:
        return
    dims = tl.arange(0, D)
    mark_head = landmarks + head * (M * D) + dims[None, :]
    for step in tl.static_range(STEPS):
        live_C = page_C < scored
        mark_CD = mark_head + tl.where(live_C, physical_C, 0).to(tl.int64)[:, None] * landmarks_page
        low_CD = tl.load(mark_CD, mask=live_C[:, None], other=0.0).to(tl.float32)
        next_C = page_C + CHUNK
        if step + 1 < STEPS:
            physical_C = tl.load(table_row + next_C, mask=next_C < width, other=0)
        if QUEST:
            high_CD = tl.load(mark_CD + D, mask=live_C[:, None], other=0.0).to(tl.float32)
            score_C = tl.full([CHUNK], -float("inf"), tl.float32)
            for g in tl.static_range(G):
                q_D = tl.load(q_head + g * q_n + dims).to(tl.float32)
                bound_CD = tl.where(q_D[None, :] > 0, high_CD, low_CD) * q_D[None, :]
                score_C = tl.maximum(score_C, tl.sum(bound_CD, 1))
        else:
            score_C = tl.sum(low_CD * mean_D[None, :], 1)
        tl.store(scores + row * width + page_C, score_C, mask=live_C)
        page_C = next_C
    if last_to_arrive(arrivals, row, pieces):
        _select_row(
            scores + row * width,
            table_row,
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
    """How many keys reach each of three thresholds a step apart; one reduction, 21 bits for each."""
    one = (key_W >= threshold + step).to(tl.int64)
    two = (key_W >= threshold + 2 * step).to(tl.int64)
    three = (key_W >= threshold + 3 * step).to(tl.int64)
    packed = tl.sum(one + (two << 21) + (three << 42), 0)
    return (
        (packed & 0x1FFFFF).to(tl.int32),
        ((packed >> 21) & 0x1FFFFF).to(tl.int32),
        (packed >> 42).to(tl.int32),
    )


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
    step = tl.full([], 1 << 30, tl.uint32)
    reached = num_pages
    if every | (kept <= recent + sink):
        threshold = tl.full([], 0xFFFFFFFF, tl.uint32)
        reached = kept
    while (reached != kept) & (step != 0):
        one, two, three = _at_least(key_W, threshold, step)
        if not ONE_BLOCK:
            for start in range(BLOCK, num_pages, BLOCK):
                more_W = _keys(scores_row, start, num_pages, recent, sink, BLOCK)
                more_one, more_two, more_three = _at_least(more_W, threshold, step)
                one += more_one
                two += more_two
                three += more_three
        reached = tl.where(three >= kept, three, tl.where(two >= kept, two, tl.where(one >= kept, one, reached)))
        digit = (one >= kept).to(tl.uint32) + (two >= kept).to(tl.uint32) + (three >= kept).to(tl.uint32)
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
