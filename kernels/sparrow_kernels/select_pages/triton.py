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

import torch
import triton
import triton.language as tl

from sparrow_kernels.early_launch import overlaps_launches, wait_for_previous
from sparrow_kernels.page_scores.triton import SCORE_VECTORS, ScoreKind, ScoreTuning, score_pages, score_tuning_for

_FORCED = tl.constexpr(0xFFFFFFFF)
"""Key of a forced page, above that of any score."""
_OCTAVE = tl.constexpr(1 << 23)
"""Distance of the keys of a number and its double."""
_MAX_BLOCK = 4096
"""Pages of a row that are held in registers; longer rows are read again for every guess."""


@dataclass(frozen=True, slots=True)
class SelectTuning:
    """How the work is cut; has no influence on results."""

    score: ScoreTuning
    num_warps: int
    """Warps of a program that selects."""


def tuning_for(head_dim: int, vectors: int, width: int) -> SelectTuning:
    """The tuning by landmark size and pages per row."""
    return SelectTuning(score_tuning_for(head_dim, vectors), _select_warps(width))


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
    B, _, D = q_BND.shape
    K = landmarks_PKMD.shape[1]
    W = page_table_BW.shape[1]
    tuning = tuning or tuning_for(D, SCORE_VECTORS[kind], W)
    scores = torch.empty(B * K * W, dtype=torch.float32, device=q_BND.device) if scratch is None else scratch
    assert scores.numel() >= B * K * W
    pages_BKJ, counts_BK = out or _results(B, K, max_selected, q_BND.device)
    early = overlaps_launches(q_BND.device)
    score_pages(
        q_BND,
        landmarks_PKMD,
        page_table_BW,
        lengths_B,
        budgets_B,
        scores,
        kind=kind,
        page_size=page_size,
        recent_pages=recent_pages,
        max_selected=max_selected,
        tuning=tuning.score,
        early=early,
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
        num_warps=tuning.num_warps,
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
