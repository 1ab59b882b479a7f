"""The selection rule: worked examples, and its invariants on any input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_kernels.select_pages.naive import num_pages, select_pages

NAN, INF = torch.nan, torch.inf


def logical_pages(
    scores: list[float], budget: int, *, num_pages: int = 0, sink: int = 1, recent: int = 2, max_selected: int = 0
) -> list[int]:
    """Selection of one sequence of one-token pages whose table is the identity."""
    length, width = num_pages or len(scores), len(scores)
    pages_BKJ, counts_BK = select_pages(
        torch.tensor([[scores]]),
        torch.arange(width, dtype=torch.int32)[None],
        torch.tensor([length], dtype=torch.int32),
        torch.tensor([budget], dtype=torch.int32),
        page_size=1,
        sink_pages=sink,
        recent_pages=recent,
        max_selected=max_selected or width,
    )
    assert not pages_BKJ[0, 0, int(counts_BK) :].any()
    return pages_BKJ[0, 0, : int(counts_BK)].tolist()


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        (1, [7]),
        (2, [6, 7]),
        (3, [0, 6, 7]),
        (4, [0, 4, 6, 7]),
        (5, [0, 2, 4, 6, 7]),
        (8, list(range(8))),
        (2**31 - 1, list(range(8))),
    ],
)
def test_recent_then_sinks_then_the_best(budget: int, kept: list[int]) -> None:
    assert logical_pages([9.0, 1.0, 5.0, 2.0, 8.0, 0.0, 3.0, 4.0], budget) == kept


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        pytest.param([0.0, 1.0, 1.0, 1.0, 0.0, 0.0], [0, 1, 4, 5], id="equal scores keep the lower page"),
        pytest.param([0.0, -0.0, 0.0, 0.0, 0.0, 0.0], [0, 1, 4, 5], id="zeros of either sign are equal"),
        pytest.param([0.0, NAN, -5.0, NAN, 0.0, 0.0], [0, 2, 4, 5], id="NaN is below any number"),
        pytest.param([0.0, NAN, -INF, NAN, 0.0, 0.0], [0, 1, 4, 5], id="NaN equals -inf"),
        pytest.param([NAN, 1.0, 2.0, INF, NAN, -INF], [0, 3, 4, 5], id="forced pages ignore their scores"),
        pytest.param([0.0, 3.4028234e38, INF, 0.0, 0.0, 0.0], [0, 2, 4, 5], id="inf is above the largest number"),
    ],
)
def test_ties_and_special_scores(scores: list[float], kept: list[int]) -> None:
    assert logical_pages(scores, 4) == kept


def test_pages_past_the_end_are_never_kept() -> None:
    assert logical_pages([0.0, 1.0, 2.0, 3.0, 4.0, 99.0, INF], 4, num_pages=5) == [0, 2, 3, 4]


def test_max_selected_caps_the_budget() -> None:
    assert logical_pages([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 5, max_selected=4) == [0, 3, 4, 5]


def test_an_empty_row_has_no_pages_and_garbage_in_the_table_is_not_read() -> None:
    pages_BKJ, counts_BK = select_pages(
        torch.zeros(2, 3, 4),
        torch.tensor([[-1, -1, -1, -1], [7, 5, -1, 10**6]], dtype=torch.int32),
        torch.tensor([0, 17], dtype=torch.int32),
        torch.tensor([3, 3], dtype=torch.int32),
        page_size=16,
        sink_pages=1,
        recent_pages=2,
        max_selected=3,
    )
    assert counts_BK.tolist() == [[0] * 3, [2] * 3]
    assert pages_BKJ.tolist() == [[[0, 0, 0]] * 3, [[7, 5, 0]] * 3]
    assert pages_BKJ.dtype == counts_BK.dtype == torch.int32


@pytest.mark.parametrize(("length", "pages"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2)])
def test_num_pages(length: int, pages: int) -> None:
    assert num_pages(torch.tensor([length]), 16).tolist() == [pages]


scores = st.lists(st.floats(width=32, allow_nan=True) | st.sampled_from([0.0, 1.0]), min_size=1, max_size=14)


@settings(max_examples=150, deadline=None)
@given(scores=scores, budget=st.integers(1, 15), sink=st.integers(0, 3), recent=st.integers(1, 3))
def test_equals_the_rule_by_brute_force_and_is_nested(scores: list[float], budget: int, sink: int, recent: int) -> None:
    n = len(scores)
    kept = logical_pages(scores, budget, sink=sink, recent=recent)
    last = min(budget, recent)
    forced = set(range(n)) if n <= budget else {*range(n - last, n), *range(min(budget - last, sink))}
    ranked = sorted(set(range(n)) - forced, key=lambda p: (-scores[p] if scores[p] == scores[p] else INF, p))
    assert kept == sorted(forced | set(ranked[: min(budget, n) - len(forced)]))
    assert set(kept) <= set(logical_pages(scores, budget + 1, sink=sink, recent=recent))
