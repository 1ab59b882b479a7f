"""Page scoring and selection in Triton: budgets and lengths read on the device, exact, ties by the rule.

Shapes follow the legend of ``sparrow_core.cache``; the rule is that of ``sparrow_kernels.select_pages.naive``.
Scores become unsigned integers of the same order. A value that parts the pages kept from the rest is found by counting
how many scores reach two guesses at a time, no further than needed; one running sum then places the kept pages in
logical order.

``select_by_landmarks`` is two launches: many programs scan the landmarks, then one small program per row (a sequence
and KV head) selects. On Hopper and newer the second is launched early and prepares while the first still runs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl

from sparrow_kernels.early_launch import launch_dependents, overlaps_launches, wait_for_previous

ScoreKind = Literal["mean", "quest"]

_FORCED = tl.constexpr(0xFFFFFFFF)
"""Key of a forced page, above that of any score."""
_OCTAVE = tl.constexpr(1 << 23)
"""Distance of the keys of a number and its double."""
_MAX_BLOCK = 4096
"""Pages of a row that are held in registers; longer rows are read again for every guess."""


@dataclass(frozen=True, slots=True)
class SelectTuning:
    """How the work is cut; has no influence on results."""

    heads: int
    """KV heads scored by a program, a power of two."""
    chunk: int
    """Pages scored at once by a program."""
    steps: int
    """Chunks per program, one after another."""
    num_warps: int
    """Warps of a program that scores."""
    select_warps: int
    """Warps of a program that selects."""


def tuning_for(head_dim: int, vectors: int, width: int) -> SelectTuning:
    """The tuning by landmark size and pages per row."""
    chunk = max(4, 2048 // (head_dim * vectors))
    return SelectTuning(heads=8, chunk=chunk, steps=1, num_warps=4, select_warps=_select_warps(width))


def scores_head_dim(head_dim: int) -> bool:
    """Whether ``select_by_landmarks`` serves this head size: a power of two from 16."""
    return head_dim >= 16 and head_dim & (head_dim - 1) == 0


def _select_warps(width: int) -> int:
    return max(1, _block(width) // 512)


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
        **_rule(W, page_size, sink_pages, recent_pages),
        EARLY=False,
        num_warps=_select_warps(W),
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
    scratch: torch.Tensor | None = None,
    tuning: SelectTuning | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``naive.select_pages`` of ``page_scores.naive.mean_landmark`` or ``quest``, fused.

    Args:
        kind: "mean": mean query of the group against landmark 0. "quest": landmarks 0 and 1 are minimum and maximum.
        out: int32 pages ``[B, K, J]`` and counts ``[B, K]``, written in place where given.
        scratch: float32, at least ``B * K * W`` entries; one per stream.

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
    tuning = tuning or tuning_for(D, vectors, W)
    scores = torch.empty(B * K * W, dtype=torch.float32, device=q_BND.device) if scratch is None else scratch
    assert scores.numel() >= B * K * W
    pages_BKJ, counts_BK = out or _results(B, K, max_selected, q_BND.device)
    early = overlaps_launches(q_BND.device)
    _score[(triton.cdiv(K, tuning.heads), triton.cdiv(W, tuning.chunk * tuning.steps), B)](
        q_BND,
        landmarks_PKMD,
        page_table_BW,
        lengths_B,
        budgets_B,
        scores,
        *q_BND.stride()[:2],
        landmarks_PKMD.stride(0),
        page_table_BW.stride(0),
        W,
        max_selected,
        K=K,
        G=N // K,
        M=M,
        D=D,
        S=page_size,
        RECENT=recent_pages,
        HEADS=min(tuning.heads, triton.next_power_of_2(K)),
        CHUNK=tuning.chunk,
        STEPS=tuning.steps,
        QUEST=kind == "quest",
        EARLY=early,
        num_warps=tuning.num_warps,
    )
    _select[(K, B)](
        scores,
        page_table_BW,
        lengths_B,
        budgets_B,
        pages_BKJ,
        counts_BK,
        page_table_BW.stride(0),
        W,
        max_selected,
        **_rule(W, page_size, sink_pages, recent_pages),
        EARLY=early,
        num_warps=tuning.select_warps,
        **({"launch_pdl": True} if early else {}),
    )
    return pages_BKJ, counts_BK


def _rule(width: int, page_size: int, sink_pages: int, recent_pages: int) -> dict[str, int | bool]:
    return {
        "S": page_size,
        "SINK": sink_pages,
        "RECENT": recent_pages,
        "BLOCK": _block(width),
        "ONE_BLOCK": _block(width) >= width,
    }


def _results(B: int, K: int, J: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    pages_BKJ = torch.empty(B, K, J, dtype=torch.int32, device=device)
    return pages_BKJ, torch.empty(B, K, dtype=torch.int32, device=device)


def _block(width: int) -> int:
    return min(_MAX_BLOCK, max(128, int(triton.next_power_of_2(width))))


@triton.jit
def _score(
    q,
    landmarks,
    table,
    lengths,
    budgets,
    scores,
    q_b,
    q_n,
    landmarks_page,
    table_b,
    width,
    max_selected,
    K: tl.constexpr,
    G: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    RECENT: tl.constexpr,
    HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
    STEPS: tl.constexpr,
    QUEST: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Scores of some pages of one sequence for ``HEADS`` KV heads, which lie side by side in a page's landmarks."""
    if EARLY:
        launch_dependents()
    first = tl.program_id(1) * (CHUNK * STEPS)
    b = tl.program_id(2).to(tl.int64)
    table_row = table + b * table_b
    page_C = first + tl.arange(0, CHUNK)
    physical_C = tl.load(table_row + page_C, mask=page_C < width, other=0)
    num_pages = (tl.load(lengths + b) + S - 1) // S
    budget = tl.minimum(tl.load(budgets + b), max_selected)
    head_H = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    q_HD = q + b * q_b + head_H[:, None] * (G * q_n) + tl.arange(0, D)[None, :]
    mean_HD = tl.zeros([HEADS, D], tl.float32)
    if not QUEST:
        for g in tl.static_range(G):
            mean_HD += tl.load(q_HD + g * q_n, mask=head_H[:, None] < K, other=0.0).to(tl.float32)
        mean_HD = mean_HD / G
    scored = tl.where(num_pages <= budget, 0, num_pages - RECENT)
    if first >= scored:
        return
    mark_HD = landmarks + head_H[:, None] * (M * D) + tl.arange(0, D)[None, :]
    scores_H = scores + (b * K + head_H) * width
    for step in tl.static_range(STEPS):
        live_CH = (page_C < scored)[:, None] & (head_H < K)[None, :]
        at_C = tl.where(page_C < scored, physical_C, 0).to(tl.int64) * landmarks_page
        mark_CHD = mark_HD[None, :, :] + at_C[:, None, None]
        low_CHD = tl.load(mark_CHD, mask=live_CH[:, :, None], other=0.0).to(tl.float32)
        next_C = page_C + CHUNK
        if step + 1 < STEPS:
            physical_C = tl.load(table_row + next_C, mask=next_C < width, other=0)
        if QUEST:
            high_CHD = tl.load(mark_CHD + D, mask=live_CH[:, :, None], other=0.0).to(tl.float32)
            score_CH = tl.full([CHUNK, HEADS], -float("inf"), tl.float32)
            for g in tl.static_range(G):
                one_HD = tl.load(q_HD + g * q_n, mask=head_H[:, None] < K, other=0.0).to(tl.float32)[None, :, :]
                bound_CHD = tl.where(one_HD > 0, high_CHD, low_CHD) * one_HD
                score_CH = tl.maximum(score_CH, tl.sum(bound_CHD, 2))
        else:
            score_CH = tl.sum(low_CHD * mean_HD[None, :, :], 2)
        tl.store(scores_H[None, :] + page_C[:, None], score_CH, mask=live_CH)
        page_C = next_C


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
    S: tl.constexpr,
    SINK: tl.constexpr,
    RECENT: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The pages of one row."""
    b = tl.program_id(1).to(tl.int64)
    row = b * tl.num_programs(0) + tl.program_id(0)
    scores_row = scores + row * width
    table_row = table + b * table_b
    pages_row = pages + row * max_selected
    num_pages = (tl.load(lengths + b) + S - 1) // S
    budget = tl.minimum(tl.load(budgets + b), max_selected)
    every = num_pages <= budget
    kept = tl.minimum(num_pages, budget)
    recent = tl.where(every, num_pages, tl.minimum(budget, RECENT))
    sink = tl.minimum(tl.maximum(budget - recent, 0), SINK)
    page_W = tl.arange(0, BLOCK)
    physical_W = tl.load(table_row + page_W, mask=page_W < num_pages, other=0)
    tl.store(counts + row, kept)
    for start in range(0, max_selected, BLOCK):
        rest_W = start + page_W
        tl.store(pages_row + rest_W, tl.zeros([BLOCK], tl.int32), mask=(rest_W >= kept) & (rest_W < max_selected))
    if EARLY:
        wait_for_previous()

    key_W = _keys(scores_row, 0, num_pages, recent, sink, BLOCK)
    low = tl.full([], 0, tl.uint32)
    span = tl.full([], 0xFFFFFFFF, tl.uint32)
    reached = num_pages
    if every | (kept <= recent + sink):
        low += 0xFFFFFFFF
        reached = kept
    else:
        top = tl.max(tl.where(key_W == _FORCED, 0, key_W), 0)
        if not ONE_BLOCK:
            for start in range(BLOCK, num_pages, BLOCK):
                more_W = _keys(scores_row, start, num_pages, recent, sink, BLOCK)
                top = tl.maximum(top, tl.max(tl.where(more_W == _FORCED, 0, more_W), 0))
        span = top + 1
    # Between low, which at least `kept` keys reach, and low + span, which fewer do. First guess: within a few octaves.
    one = (span - tl.minimum(span, 4 * _OCTAVE)).to(tl.uint32)
    two = (span - tl.minimum(span, _OCTAVE)).to(tl.uint32)
    while (reached != kept) & (span > 1):
        reach_one, reach_two = _reach(key_W, one, two)
        if not ONE_BLOCK:
            for start in range(BLOCK, num_pages, BLOCK):
                more_W = _keys(scores_row, start, num_pages, recent, sink, BLOCK)
                more_one, more_two = _reach(more_W, one, two)
                reach_one += more_one
                reach_two += more_two
        high = low + span
        high = tl.where(reach_one < kept, one, tl.where(reach_two < kept, two, high))
        low = tl.where(reach_two >= kept, two, tl.where(reach_one >= kept, one, low))
        reached = tl.where(reach_two >= kept, reach_two, tl.where(reach_one >= kept, reach_one, reached))
        span = high - low
        third = tl.maximum(span // 3, 1).to(tl.uint32)
        one = low + third
        two = one + third

    ties = kept
    if reached != kept:
        above = tl.sum((key_W > low).to(tl.int32), 0)
        if not ONE_BLOCK:
            for start in range(BLOCK, num_pages, BLOCK):
                more_W = _keys(scores_row, start, num_pages, recent, sink, BLOCK)
                above += tl.sum((more_W > low).to(tl.int32), 0)
        ties = kept - above
    placed_above, placed_ties = _place(key_W, low, physical_W, 0, 0, ties, pages_row)
    if not ONE_BLOCK:
        for start in range(BLOCK, num_pages, BLOCK):
            more_W = _keys(scores_row, start, num_pages, recent, sink, BLOCK)
            more_physical_W = tl.load(table_row + start + page_W, mask=start + page_W < num_pages, other=0)
            more_above, more_ties = _place(more_W, low, more_physical_W, placed_above, placed_ties, ties, pages_row)
            placed_above += more_above
            placed_ties += more_ties


@triton.jit
def _keys(scores_row, start, num_pages, recent, sink, BLOCK: tl.constexpr):
    """Unsigned integers in the order of the scores; forced pages above all, pages past the end 0, below all."""
    page_W = start + tl.arange(0, BLOCK)
    exists_W = page_W < num_pages
    forced_W = exists_W & ((page_W >= num_pages - recent) | (page_W < sink))
    score_W = tl.load(scores_row + page_W, mask=exists_W & (forced_W == 0), other=-float("inf"))
    score_W = tl.where(score_W == score_W, score_W, -float("inf"))
    score_W = tl.where(score_W == 0.0, 0.0, score_W)
    bits_W = score_W.to(tl.uint32, bitcast=True)
    key_W = tl.where((bits_W >> 31) != 0, ~bits_W, bits_W | 0x80000000)
    return tl.where(forced_W, _FORCED, tl.where(exists_W, key_W, 0).to(tl.uint32)).to(tl.uint32)


@triton.jit
def _reach(key_W, one, two):
    """How many keys reach each of two values; one reduction, 16 bits for each."""
    packed = tl.sum((key_W >= one).to(tl.int32) + ((key_W >= two).to(tl.int32) << 16), 0)
    return packed & 0xFFFF, packed >> 16


@triton.jit
def _place(key_W, low, physical_W, placed_above, placed_ties, ties, pages_row):
    """Write the kept pages of one block; returns its numbers of keys above ``low`` and equal to it."""
    above_W = (key_W > low).to(tl.int32)
    tie_W = (key_W == low).to(tl.int32)
    packed_W = tl.cumsum(above_W + (tie_W << 16), 0)
    above_before_W = (packed_W & 0xFFFF) - above_W + placed_above
    ties_before_W = (packed_W >> 16) - tie_W + placed_ties
    keep_W = (above_W != 0) | ((tie_W != 0) & (ties_before_W < ties))
    tl.store(pages_row + above_before_W + tl.minimum(ties_before_W, ties), physical_W, mask=keep_W)
    return tl.sum(above_W, 0), tl.sum(tie_W, 0)
