"""The conformance suites fail for a plugin with a known defect, one defect at a time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparrow_backends.reference import ReferenceBackend
from sparrow_backends.selectors.mean_landmark import MeanLandmark
from sparrow_core.cache import DecodeBatch, LayerCache, PageSelection, PrefillBatch
from sparrow_core.mismatch import MismatchStream
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.testing import BackendConformance, PolicyConformance, SelectorConformance
from sparrow_kernels.select_pages.naive import num_pages
from sparrow_policies.static import StaticConfig, StaticPolicy


class ReadsOneSlotTooMany(ReferenceBackend):
    def decode(self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float) -> Any:
        assert isinstance(self._batch, DecodeBatch)
        self._batch = replace(self._batch, lengths_B=self._batch.lengths_B + 1)
        return super().decode(layer, q_BND, pages, scale)


class SameForEveryHead(ReferenceBackend):
    def decode(self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float) -> Any:
        if pages is not None:
            pages = PageSelection(pages.pages_BKJ[:, :1].expand_as(pages.pages_BKJ), pages.counts_BK)
        return super().decode(layer, q_BND, pages, scale)


class FiniteLseOfEmptyRows(ReferenceBackend):
    def decode(self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float) -> Any:
        out_BND, lse_BN = super().decode(layer, q_BND, pages, scale)
        assert lse_BN is not None
        return out_BND, lse_BN.nan_to_num(neginf=-1e9)


class KeepsTheFirstWidth(ReferenceBackend):
    width = 0

    def decode(self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float) -> Any:
        if pages is not None:
            self.width = self.width or pages.pages_BKJ.shape[2]
            pages = PageSelection(pages.pages_BKJ[..., : self.width], pages.counts_BK.clamp(max=self.width))
        return super().decode(layer, q_BND, pages, scale)


class ForgetsLandmarksOfOpenPages(ReferenceBackend):
    def plan(self, batch: DecodeBatch | PrefillBatch) -> None:
        super().plan(batch)
        begun = set(self._pages_T[self._slots_T == 0].tolist())
        self._filled_X = torch.tensor([page for page in self._filled_X.tolist() if page in begun], dtype=torch.long)


class WritesForEmptyRows(ReferenceBackend):
    def plan(self, batch: DecodeBatch | PrefillBatch) -> None:
        super().plan(batch)
        self._pages_T = self._pages_T.clamp(min=0)


class NotCausal(ReferenceBackend):
    def prefill(self, layer: int, q_TND: torch.Tensor, scale: float) -> torch.Tensor:
        return super().prefill(layer, q_TND.flip(0), scale).flip(0)


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        (ReadsOneSlotTooMany, lambda suite: suite.test_decode_continues_prefill()),
        (ReadsOneSlotTooMany, lambda suite: suite.test_later_tokens_are_never_read()),
        (SameForEveryHead, lambda suite: suite.test_budgets_at_their_edges(16)),
        (FiniteLseOfEmptyRows, lambda suite: suite.test_empty_rows_write_nothing()),
        (KeepsTheFirstWidth, lambda suite: suite.test_budgets_shrink_and_grow_between_steps()),
        (ForgetsLandmarksOfOpenPages, lambda suite: suite.test_prefill_in_any_split_equals_whole(0)),
        (ForgetsLandmarksOfOpenPages, lambda suite: suite.test_decode_continues_prefill()),
        (WritesForEmptyRows, lambda suite: suite.test_empty_rows_write_nothing()),
        (NotCausal, lambda suite: suite.test_prefill_is_causal_attention(16, 3)),
    ],
)
def test_backend_defects(defect: type[ReferenceBackend], check: Callable[[BackendConformance], None]) -> None:
    suite = type("Suite", (BackendConformance,), {"backend": defect, "usual_head_dim": 16})()
    with pytest.raises(AssertionError):
        check(suite)


class TiesKeepTheHigherPage(MeanLandmark):
    def select(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> PageSelection:
        nudged = MeanLandmark(self.config, self.layout)
        drift_W = 1e-4 * torch.arange(batch.page_table_BW.shape[1] - 1)
        nudged.score = lambda *args: MeanLandmark.score(self, *args) + drift_W  # type: ignore[method-assign]
        return nudged.select(q_BND, cache, batch)


class NoSinks(MeanLandmark):
    def select(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> PageSelection:
        return MeanLandmark(self.config, replace(self.layout, sink_pages=0)).select(q_BND, cache, batch)


class AveragesOverTheBatch(MeanLandmark):
    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        return super().score(q_BND.mean(0, keepdim=True).expand_as(q_BND), cache, batch)


class ReadsLandmarksOfOpenPages(MeanLandmark):
    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        lengths_B = num_pages(batch.lengths_B, cache.page_size) * cache.page_size
        scores_BKW = super().score(q_BND, cache, replace(batch, lengths_B=lengths_B))
        return scores_BKW - scores_BKW.mean(-1, keepdim=True)


class PrefersByPhysicalPage(MeanLandmark):
    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        return batch.page_table_BW[:, None].float().expand(-1, cache.k_PKSD.shape[1], -1)


class OneTooFew(MeanLandmark):
    def select(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> PageSelection:
        return super().select(q_BND, cache, replace(batch, budgets_B=(batch.budgets_B - 1).clamp(min=1)))


class OtherRankAtOddBudgets(MeanLandmark):
    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        return super().score(q_BND, cache, batch) * (1 - 2 * (batch.budgets_B % 2))[:, None, None]


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        (TiesKeepTheHigherPage, "test_keeps_the_best_scored_and_ties_keep_the_lower_page"),
        (NoSinks, "test_forced_pages_do_not_depend_on_the_query"),
        (AveragesOverTheBatch, "test_rows_do_not_depend_on_the_batch"),
        (ReadsLandmarksOfOpenPages, "test_where_a_page_lies_and_what_unused_slots_hold_changes_nothing"),
        (PrefersByPhysicalPage, "test_where_a_page_lies_and_what_unused_slots_hold_changes_nothing"),
        (OneTooFew, "test_keeps_the_best_scored_and_ties_keep_the_lower_page"),
        (OtherRankAtOddBudgets, "test_a_larger_budget_drops_no_page"),
    ],
)
def test_selector_defects(defect: type[MeanLandmark], check: str) -> None:
    suite = type("Suite", (SelectorConformance,), {"selector": defect})()
    with pytest.raises(AssertionError):
        getattr(suite, check)()


class Adds(StaticPolicy):
    """Grows by the streams seen; ``saved`` and ``counts_empty`` are the defects."""

    seen = 0
    saved, counts_empty = True, False

    def schedule(self) -> BudgetSchedule:
        return replace(super().schedule(), pages=(32 + self.seen,))

    def observe(self, mismatch: MismatchStream) -> None:
        self.seen += bool(mismatch.total or self.counts_empty)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen if self.saved else 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class ForgetsItsState(Adds):
    saved = False


class CountsEmptyStreams(Adds):
    counts_empty = True


def policy_suite(policy: type[StaticPolicy]) -> PolicyConformance:
    return type("Suite", (PolicyConformance,), {"policy": policy, "config": StaticConfig(pages=32)})()


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        (ForgetsItsState, "test_saved_state_continues_identically"),
        (CountsEmptyStreams, "test_a_stream_without_tokens_changes_nothing"),
    ],
)
def test_policy_defects(defect: type[StaticPolicy], check: str) -> None:
    getattr(policy_suite(Adds), check)()
    with pytest.raises(AssertionError):
        getattr(policy_suite(defect), check)()
