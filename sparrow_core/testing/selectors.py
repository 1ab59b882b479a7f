"""One suite for every page selector::

from sparrow_core.testing import SelectorConformance

class TestMine(SelectorConformance):
    selector = MySelector
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from sparrow_core.cache import AttentionShape
from sparrow_core.contracts import API_VERSION, PageSelector, PluginConfig, SparseLayout
from sparrow_core.testing.paged import (
    PagedCase,
    RandomSequence,
    budgets_of_interest,
    decode_batch,
    fill_cache,
    lengths_of_interest,
    num_pool_pages,
    page_count,
    page_tables,
    paged_cases,
    poisoned_cache,
)
from sparrow_core.testing.world import default_config

Logical = list[list[list[int]]]
"""Logical pages ``[B][K][count]``."""


class SelectorConformance:
    """Derive a class named ``Test...`` and set ``selector``."""

    selector: ClassVar[type[PageSelector]]
    config: ClassVar[PluginConfig | None] = None
    """None: the selector's defaults."""
    device: ClassVar[str] = "cpu"
    dtype: ClassVar[torch.dtype] = torch.float32
    sink_pages: ClassVar[int] = 1
    recent_pages: ClassVar[int] = 2
    page_sizes: ClassVar[tuple[int, ...]] = (1, 8, 16, 32, 64, 128)
    usual_page_size: ClassVar[int] = 16

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "page_size" in metafunc.fixturenames:
            metafunc.parametrize("page_size", self.page_sizes, ids=[f"page_size={size}" for size in self.page_sizes])

    def make(self, page_size: int) -> PageSelector:
        layout = SparseLayout(page_size=page_size, sink_pages=self.sink_pages, recent_pages=self.recent_pages)
        return self.selector(self.config or default_config(self.selector), layout)

    def sequences(self, lengths: Sequence[int], seed: int = 0) -> list[RandomSequence]:
        shape = AttentionShape(1, 6, 2, 16)
        return [RandomSequence.make(shape, length, seed + row, self.dtype) for row, length in enumerate(lengths)]

    def select(
        self,
        sequences: Sequence[RandomSequence],
        budgets: Sequence[int],
        page_size: int,
        *,
        seed: int = 0,
        poison: float = torch.nan,
    ) -> tuple[Logical, torch.Tensor]:
        """Selected logical pages and the scores ``[B, K, W]``, after checking all that holds for any selection."""
        selector, lengths = self.make(page_size), [len(s.q_LND) for s in sequences]
        _, num_heads, head_dim = sequences[0].q_LND.shape
        table_BW = page_tables(lengths, page_size, seed)
        cache = poisoned_cache(
            AttentionShape(1, num_heads, sequences[0].k_LKD.shape[1], head_dim),
            num_pages=num_pool_pages(table_BW),
            page_size=page_size,
            landmark_vectors=selector.landmark_vectors,
            dtype=self.dtype,
            device=self.device,
            poison=poison,
        )
        fill_cache(cache, sequences, lengths, table_BW, selector)
        empty_ND = sequences[0].q_LND.new_full((num_heads, head_dim), torch.nan)
        q_BND = torch.stack([s.q_LND[-1] if len(s.q_LND) else empty_ND for s in sequences]).to(self.device)
        batch = decode_batch(lengths, budgets, table_BW, self.device)
        chosen = selector.select(q_BND, cache.layers[0], batch)
        scores_BKW = selector.score(q_BND, cache.layers[0], batch).cpu()
        assert scores_BKW.shape == (len(lengths), cache.shape.num_kv_heads, table_BW.shape[1])

        pages_BKJ, counts_BK = chosen.pages_BKJ.cpu(), chosen.counts_BK.cpu()
        assert pages_BKJ.dtype == counts_BK.dtype == torch.int32
        assert bool(((pages_BKJ >= 0) & (pages_BKJ < cache.num_pages)).all()), "entries past the count are valid ids"
        logical: Logical = []
        for row, length in enumerate(lengths):
            where = {int(page): at for at, page in enumerate(table_BW[row, : page_count(length, page_size)])}
            logical.append(
                [
                    [where[page] for page in pages_BKJ[row, head, : int(counts_BK[row, head])].tolist()]
                    for head in range(pages_BKJ.shape[1])
                ]
            )
        self._check_rule(logical, lengths, budgets, page_size)
        return logical, scores_BKW

    def _check_rule(self, logical: Logical, lengths: Sequence[int], budgets: Sequence[int], page_size: int) -> None:
        for heads, length, budget in zip(logical, lengths, budgets, strict=True):
            count = page_count(length, page_size)
            for pages in heads:
                assert len(pages) == min(budget, count), f"{len(pages)} pages of {count} under a budget of {budget}"
                assert pages == sorted(set(pages)), "pages are unique and in ascending logical order"
                assert self.forced(count, budget) <= set(pages), "recent and sink pages are always kept"

    def forced(self, num_pages: int, budget: int) -> set[int]:
        """Pages kept whatever their score: the recent ones first, then the sinks, as far as the budget goes."""
        if num_pages <= budget:
            return set(range(num_pages))
        recent = min(budget, self.recent_pages)
        return set(range(num_pages - recent, num_pages)) | set(range(min(budget - recent, self.sink_pages)))

    def best(self, scores_W: Sequence[float], num_pages: int, budget: int) -> list[int]:
        """The rule by brute force; equal scores keep the lower page, NaN is the lowest score."""
        forced = self.forced(num_pages, budget)
        middle = [page for page in range(num_pages) if page not in forced]
        ranked = sorted(middle, key=lambda page: -scores_W[page] if scores_W[page] == scores_W[page] else torch.inf)
        return sorted(forced | set(ranked[: min(budget, num_pages) - len(forced)]))

    def test_states_what_it_keeps(self) -> None:
        assert self.selector.api_version == API_VERSION
        keys_XSD = self.sequences([5 * 16])[0].k_LKD[:, 0].view(5, 16, 16).to(self.device)
        marks_XMD = self.make(16).landmarks(keys_XSD)
        assert marks_XMD.shape == (5, self.selector.landmark_vectors, 16)
        assert bool(marks_XMD.isfinite().all())

    def test_budgets_at_their_edges(self, page_size: int) -> None:
        sequences = self.sequences([0, 1, *lengths_of_interest(page_size, 6)])
        for budget in budgets_of_interest(6, self.sink_pages, self.recent_pages):
            self.select(sequences, [budget] * len(sequences), page_size)

    def test_keeps_the_best_scored_and_ties_keep_the_lower_page(self) -> None:
        size = self.usual_page_size
        random, tied = self.sequences([9 * size + 3, 8 * size])
        tied.k_LKD[:] = tied.k_LKD[0]
        for budget in range(1, 11):
            logical, scores_BKW = self.select([random, tied], [budget, budget], size)
            for row, num_pages in enumerate((10, 8)):
                for head, pages in enumerate(logical[row]):
                    assert pages == self.best(scores_BKW[row, head].tolist(), num_pages, budget)

    def test_a_larger_budget_drops_no_page(self) -> None:
        size = self.usual_page_size
        sequences = self.sequences([7 * size + 1, 9 * size])
        steps = [self.select(sequences, [budget, budget], size)[0] for budget in range(1, 11)]
        for smaller, larger in pairwise(steps):
            for row in range(2):
                for few, many in zip(smaller[row], larger[row], strict=True):
                    assert set(few) <= set(many)

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
        derandomize=True,
    )
    @given(case=paged_cases())
    def test_any_batch(self, case: PagedCase) -> None:
        sequences = case.sequences(self.dtype)
        logical, _ = self.select(sequences, case.budgets, case.page_size, seed=case.seed)
        again, _ = self.select(sequences, case.budgets, case.page_size, seed=case.seed)
        assert again == logical

    def test_rows_do_not_depend_on_the_batch(self) -> None:
        size, budgets = self.usual_page_size, [4, 5, 6]
        sequences = self.sequences([6 * size + 2, 9 * size, 12 * size + 5])
        together, _ = self.select(sequences, budgets, size)
        for row, sequence in enumerate(sequences):
            assert self.select([sequence], [budgets[row]], size)[0] == [together[row]]

    def test_where_a_page_lies_and_what_unused_slots_hold_changes_nothing(self) -> None:
        size, budgets = self.usual_page_size, [1, 5, 4]
        sequences = self.sequences([0, 9 * size + 1, 7 * size])
        base, _ = self.select(sequences, budgets, size)
        assert self.select(sequences, budgets, size, seed=1)[0] == base
        assert self.select(sequences, budgets, size, poison=1e4)[0] == base

    def test_forced_pages_do_not_depend_on_the_query(self) -> None:
        size = self.usual_page_size
        disliked, undefined = self.sequences([9 * size + 1, 9 * size + 1])
        against_KD = -10 * disliked.q_LND[-1].view(2, -1, 16).mean(1)
        disliked.k_LKD[:size] = disliked.k_LKD[8 * size :] = against_KD
        undefined.q_LND[:] = torch.nan
        self.select([disliked, undefined], [5, 5], size)

    def test_a_batch_of_empty_rows(self) -> None:
        logical, _ = self.select(self.sequences([0, 0]), [3, 1], self.usual_page_size)
        assert logical == [[[], []], [[], []]]
