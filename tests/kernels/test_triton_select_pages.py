"""Selection in Triton against the naive rule, exactly; compiled on CUDA, else interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparrow_kernels.page_scores import naive as page_scores
from sparrow_kernels.page_scores.triton import ScoreKind, ScoreTuning
from sparrow_kernels.select_pages import naive
from sparrow_kernels.select_pages.triton import (
    SelectTuning,
    select_by_landmarks,
    select_pages,
)

CUDA = torch.cuda.is_available()
RULE: dict[str, Any] = {"page_size": 16, "sink_pages": 1, "recent_pages": 2}


def tables(lengths: list[int], width: int, page_size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A shuffled table with -1 past each sequence's end, and the lengths."""
    table_BW = torch.randperm(len(lengths) * width).view(len(lengths), width).int()
    for row, length in enumerate(lengths):
        table_BW[row, -(-length // page_size) :] = -1
    return table_BW.to(device), torch.tensor(lengths, dtype=torch.int32, device=device)


def check(
    scores_BKW: torch.Tensor, lengths: list[int], budgets: list[int], device: torch.device, **changed: Any
) -> None:
    rule = {"max_selected": scores_BKW.shape[2], **RULE, **changed}
    table_BW, lengths_B = tables(lengths, scores_BKW.shape[2], rule["page_size"], device)
    budgets_B = torch.tensor(budgets, dtype=torch.int32, device=device)
    args = (scores_BKW.to(device), table_BW, lengths_B, budgets_B)
    for got, expected in zip(select_pages(*args, **rule), naive.select_pages(*args, **rule), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("num_pages", [1, 2, 3, 4, 33], ids="pages={}".format)
@pytest.mark.parametrize("fill", [1, 15, 16], ids="fill={}".format)
def test_budgets_at_their_edges(num_pages: int, fill: int, device: torch.device) -> None:
    torch.manual_seed(num_pages)
    budgets = [b for b in (1, 2, 3, 4, num_pages - 1, num_pages, num_pages + 1, 2**31 - 1) if b >= 1]
    lengths = [(num_pages - 1) * 16 + fill] * len(budgets)
    check(torch.randn(len(budgets), 2, num_pages + 3), lengths, budgets, device)


@pytest.mark.parametrize(
    "values",
    [[0.0], [1.0, 2.0], [0.0, -0.0], [torch.nan, -torch.inf, torch.inf, 1.0], [3e38, -3e38, 1e-45, -1e-45]],
    ids=["all equal", "two values", "zeros of either sign", "not finite", "extremes"],
)
def test_ties_and_special_scores(values: list[float], device: torch.device) -> None:
    torch.manual_seed(0)
    scores_BKW = torch.tensor(values)[torch.randint(len(values), (4, 2, 60))]
    check(scores_BKW, [960, 955, 700, 0], [4, 17, 30, 9], device)


@pytest.mark.parametrize(("sink", "recent"), [(0, 1), (2, 1), (1, 5)], ids=str)
def test_other_forced_pages(sink: int, recent: int, device: torch.device) -> None:
    torch.manual_seed(1)
    budgets = [1, 2, sink + recent, sink + recent + 1, 20]
    check(torch.randn(5, 1, 40), [640] * 5, budgets, device, sink_pages=sink, recent_pages=recent)


def test_max_selected_caps_the_budget(device: torch.device) -> None:
    check(torch.randn(2, 1, 40), [640, 90], [30, 30], device, max_selected=9)


@pytest.mark.parametrize("width", [4096, 5000, 9000] if CUDA else [4096, 5000], ids="width={}".format)
def test_thousands_of_pages(width: int, device: torch.device) -> None:
    torch.manual_seed(2)
    check(torch.randn(2, 1, width), [width * 16, width * 16 - 3], [300, width - 1], device)
    check(torch.randn(2, 1, width).round(), [width * 16, width * 8], [1000, 256], device)


def landmark_pool(
    lengths: list[int], kv_heads: int, vectors: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Landmarks of full pages, NaN everywhere else; table and lengths."""
    width = max(1, *(-(-length // 16) for length in lengths)) + 1
    table_BW, lengths_B = tables(lengths, width, 16, device)
    marks = torch.full((len(lengths) * width, kv_heads, vectors, head_dim), torch.nan, dtype=dtype, device=device)
    for row, length in enumerate(lengths):
        full = table_BW[row, : length // 16].long()
        drawn = torch.randn(len(full), kv_heads, vectors, head_dim, device=device)
        marks[full] = drawn.sort(2).values.to(dtype)
    return marks, table_BW, lengths_B


@pytest.mark.parametrize("kind", ["mean", "quest"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("group", "heads"), [(1, 1), (5, 4), (8, 2)] if CUDA else [(5, 4)], ids=str)
def test_by_landmarks(kind: ScoreKind, dtype: torch.dtype, group: int, heads: int, device: torch.device) -> None:
    torch.manual_seed(3)
    lengths, budgets = [0, 1, 16, 47, 48, 1100, 777], [3, 1, 2, 2, 5, 20, 4]
    marks, table_BW, lengths_B = landmark_pool(lengths, 3, 1 if kind == "mean" else 2, 64, dtype, device)
    q_BND = torch.randn(len(lengths), 3 * group, 64, device=device).to(dtype)
    q_BND[0] = torch.nan
    budgets_B = torch.tensor(budgets, dtype=torch.int32, device=device)
    rule = {"max_selected": 20, **RULE}
    pages_BKJ, counts_BK = select_by_landmarks(
        q_BND,
        marks,
        table_BW,
        lengths_B,
        budgets_B,
        kind=kind,
        tuning=SelectTuning(ScoreTuning(heads, 16, 2, 4), 1),
        **rule,
    )
    score = {"mean": page_scores.mean_landmark, "quest": page_scores.quest}[kind]
    scores_BKW = score(q_BND.double(), marks.double(), table_BW, lengths_B, 16)
    expected_BKJ, expected_BK = naive.select_pages(scores_BKW, table_BW, lengths_B, budgets_B, **rule)
    assert torch.equal(counts_BK, expected_BK)
    if not torch.equal(pages_BKJ, expected_BKJ):
        assert_ties(pages_BKJ, expected_BKJ, counts_BK, scores_BKW, table_BW)


def assert_ties(
    got_BKJ: torch.Tensor,
    expected_BKJ: torch.Tensor,
    counts_BK: torch.Tensor,
    scores_BKW: torch.Tensor,
    table_BW: torch.Tensor,
) -> None:
    """Where the sets differ, the scores of the pages in question are equal to float32's rounding."""
    for row, head in (got_BKJ != expected_BKJ).any(-1).nonzero().tolist():
        count = int(counts_BK[row, head])
        logical = {page: at for at, page in enumerate(table_BW[row].tolist())}
        got, expected = set(got_BKJ[row, head, :count].tolist()), set(expected_BKJ[row, head, :count].tolist())
        scores = [float(scores_BKW[row, head, logical[page]]) for page in got ^ expected]
        assert max(scores) - min(scores) <= 1e-5 * max(1.0, max(map(abs, scores)))


def test_equal_landmarks_keep_the_lower_page(device: torch.device) -> None:
    marks, table_BW, lengths_B = landmark_pool([640], 1, 1, 64, torch.bfloat16, device)
    marks[table_BW[0, :40].long()] = torch.ones(64, dtype=torch.bfloat16, device=device)
    q_BND = torch.ones(1, 2, 64, dtype=torch.bfloat16, device=device)
    budgets_B = torch.tensor([7], dtype=torch.int32, device=device)
    pages_BKJ, _ = select_by_landmarks(q_BND, marks, table_BW, lengths_B, budgets_B, max_selected=7, **RULE)
    assert pages_BKJ[0, 0].tolist() == table_BW[0, [0, 1, 2, 3, 4, 38, 39]].tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_a_captured_launch_follows_lengths_and_budgets(device: torch.device) -> None:
    torch.manual_seed(4)
    most = [9000, 3000, 16, 20000]
    marks, table_BW, lengths_B = landmark_pool(most, 8, 1, 128, torch.bfloat16, device)
    q_BND = torch.randn(4, 16, 128, dtype=torch.bfloat16, device=device)
    budgets_B = torch.full((4,), 200, dtype=torch.int32, device=device)
    scratch = torch.empty(32 * table_BW.shape[1], device=device)
    rule = {"max_selected": 256, **RULE}

    def select() -> tuple[torch.Tensor, torch.Tensor]:
        return select_by_landmarks(q_BND, marks, table_BW, lengths_B, budgets_B, scratch=scratch, **rule)

    select()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = select()
    steps = [(most, [1, 3, 9, 256]), ([100, 0, 0, 8000], [3, 3, 3, 40]), (most, [256, 100, 1, 200])]
    for lengths, budgets in steps:
        lengths_B.copy_(torch.tensor(lengths))
        budgets_B.copy_(torch.tensor(budgets))
        graph.replay()
        scores_BKW = page_scores.mean_landmark(q_BND.double(), marks.double(), table_BW, lengths_B, 16)
        expected_BKJ, expected_BK = naive.select_pages(scores_BKW, table_BW, lengths_B, budgets_B, **rule)
        assert torch.equal(captured[1], expected_BK)
        if not torch.equal(captured[0], expected_BKJ):
            assert_ties(captured[0], expected_BKJ, expected_BK, scores_BKW, table_BW)
