"""Page scores from landmarks in Triton, for pages that a selection may choose.

Shapes follow the legend of ``sparrow_core.cache``; the scores are those of ``sparrow_kernels.page_scores.naive``.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl

from sparrow_kernels.early_launch import launch_dependents

ScoreKind = Literal["mean", "quest"]
SCORE_VECTORS: dict[ScoreKind, int] = {"mean": 1, "quest": 2}
"""Landmark vectors that each kind reads."""


@dataclass(frozen=True, slots=True)
class ScoreTuning:
    """How the scan is cut; has no influence on results."""

    heads: int
    """KV heads scored by a program, a power of two."""
    chunk: int
    """Pages scored at once by a program."""
    steps: int
    """Chunks per program, one after another."""
    num_warps: int


def score_tuning_for(head_dim: int, vectors: int) -> ScoreTuning:
    """The tuning by landmark size."""
    return ScoreTuning(heads=4, chunk=min(64, max(4, 2048 // (head_dim * vectors))), steps=1, num_warps=4)


def scores_head_dim(head_dim: int) -> bool:
    """Whether ``score_pages`` serves this head size: a power of two from 16."""
    return head_dim >= 16 and head_dim & (head_dim - 1) == 0


def score_pages(
    q_BND: torch.Tensor,
    landmarks_PKMD: torch.Tensor,
    page_table_BW: torch.Tensor,
    lengths_B: torch.Tensor,
    budgets_B: torch.Tensor,
    scores: torch.Tensor,
    *,
    kind: ScoreKind,
    page_size: int,
    recent_pages: int,
    max_selected: int,
    tuning: ScoreTuning,
    early: bool,
) -> None:
    """Write float32 ``scores`` ``[B, K, W]`` (flat) of the pages before the recent ones; other entries are left alone.

    Args:
        kind: "mean": mean query of the group against landmark 0. "quest": landmarks 0 and 1 are minimum and maximum.
        budgets_B: a sequence with no more pages than its budget, capped at ``max_selected``, is not scored.
        early: let the next kernel in the stream start early (``sparrow_kernels.early_launch``).
    """
    B, N, D = q_BND.shape
    _, K, M, _ = landmarks_PKMD.shape
    W = page_table_BW.shape[1]
    assert SCORE_VECTORS[kind] <= M
    assert landmarks_PKMD.stride()[1:] == (M * D, D, 1), "landmarks must be contiguous"
    assert q_BND.stride(2) == 1
    assert page_table_BW.stride(1) == 1
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
