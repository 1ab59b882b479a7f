"""Predictions from recorded budgets: exact at a measured budget, interpolated between two, honest outside."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_core.replay.predict import Bins, Draw, Predictor
from sparrow_core.replay.recordings import load_recordings
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule
from sparrow_core.trace import TraceSet
from tests.replay.recorded import MODEL, meta, trace, write_units

BINS = Bins(500, 4, 0.05)
BUDGETS = (8, 16, 32, 64)


def _constant(lengths: np.ndarray, budgets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Acceptance 0.5 + 0.1 log2(pages / 8), the same for every token."""
    return 0.5 + 0.1 * np.log2(budgets / 8)


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_units(tmp_path_factory.mktemp("synthetic"), BUDGETS)


@pytest.fixture(scope="module")
def constant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_units(tmp_path_factory.mktemp("constant"), BUDGETS, prompts=2, acceptance=_constant)


@pytest.fixture(scope="module")
def constant_predictor(constant: Path) -> Predictor:
    return Predictor(load_recordings(constant), BINS)


@pytest.mark.parametrize("pages", BUDGETS)
def test_a_measured_budget_gives_its_own_stream(units: Path, pages: int) -> None:
    recorded = [TraceSet.load(path) for path in sorted((units / "units").glob("*/*"))]
    own = TraceSet([t for s in recorded for t in s.traces if t.key.sample == BUDGETS.index(pages)], meta())
    expected = own.mismatch(bin_tokens=500, num_bins=4)
    prediction = Predictor(load_recordings(units), BINS).predict(BudgetSchedule((pages,)))
    assert prediction.outside == ()
    assert prediction.stream.total == expected.total
    # Every budget from 32 pages covers bin 0; one of those samples stands for all.
    for index in range(0 if pages <= 32 else 1, 4):
        assert prediction.stream.bin(index) == expected.bin(index)
        assert prediction.stream.sketch(index) == expected.sketch(index)


@pytest.mark.parametrize("pages", [9, 12, 20, 31])
def test_between_budgets_the_tail_is_linear_in_log_pages(constant_predictor: Predictor, pages: int) -> None:
    stream = constant_predictor.predict(BudgetSchedule((pages,))).stream
    # Bins 1 to 3 have more pages than 32 at every length, so these budgets lie between measured ones.
    for index in (2, 3):
        tail = stream.tail(index)
        assert tail == pytest.approx(0.5 + 0.1 * math.log2(pages / 8), abs=1 / 4096)


def test_kept_tokens_are_those_of_the_budget_asked_for(constant_predictor: Predictor) -> None:
    stats = constant_predictor.predict(BudgetSchedule((20,))).stream.bin(2)
    lengths = np.arange(1000, 1500)
    attended = lengths - (-(-lengths // 16) - 20) * 16
    assert stats.pages_mean == 20
    assert stats.kept_fraction == pytest.approx(attended.sum() / lengths.sum())


@pytest.mark.parametrize(("pages", "used"), [(4, 8), (100, 64)])
def test_outside_the_measured_range_the_nearest_stands_in_and_is_named(
    constant_predictor: Predictor, pages: int, used: int
) -> None:
    prediction = constant_predictor.predict(BudgetSchedule((pages,)))
    last = [item for item in prediction.outside if item.bin == 3]
    assert [(item.asked, item.used) for item in last] == [(pages, used)]
    assert prediction.stream.tail(3) == pytest.approx(0.5 + 0.1 * math.log2(used / 8), abs=1 / 4096)


def test_a_budget_that_covers_the_bin_is_as_good_as_dense(constant_predictor: Predictor) -> None:
    """Bin 0 ends at 499 tokens, 32 pages: 64 pages and dense attention are the same there."""
    sixty_four, dense = (constant_predictor.predict(BudgetSchedule((p,))) for p in (64, DENSE_PAGES))
    assert sixty_four.stream.bin(0) == dense.stream.bin(0)
    assert not [item for item in dense.outside if item.bin == 0]


def test_a_schedule_with_narrower_bins_splits_a_bin(constant_predictor: Predictor) -> None:
    schedule = BudgetSchedule((8, 8, 8, 8, 16, 32), bin_tokens=250)
    stream = constant_predictor.predict(schedule).stream
    assert stream.bin(2).tokens == 2 * 500
    assert stream.bin(2).pages_mean == 24
    assert stream.tail(2) == pytest.approx(0.6, abs=1 / 4096)
    assert stream.sketch(2).quantile(0.75) == pytest.approx(0.7, abs=1 / 4096)


def test_draws_are_reproducible_and_of_the_asked_size(units: Path) -> None:
    predictor = Predictor(load_recordings(units), BINS)
    schedule = BudgetSchedule((12,))
    first, again, other = (predictor.predict(schedule, Draw(700, (seed, 0))).stream for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert [b.tokens for b in first.bins()] == [700] * 4


@given(
    pages=st.lists(st.integers(4, 120), min_size=1, max_size=6),
    width=st.sampled_from([250, 300, 500, 900, 2000]),
    more=st.integers(0, 40),
)
def test_more_pages_never_predict_a_lower_tail(
    constant_predictor: Predictor, pages: list[int], width: int, more: int
) -> None:
    fewer_pages = constant_predictor.predict(BudgetSchedule(tuple(pages), bin_tokens=width)).stream
    more_pages = constant_predictor.predict(BudgetSchedule(tuple(p + more for p in pages), bin_tokens=width)).stream
    for index in range(4):
        low, high = fewer_pages.tail(index), more_pages.tail(index)
        assert low is not None
        assert high is not None
        assert low <= high
        assert fewer_pages.bin(index).tokens == more_pages.bin(index).tokens


def test_interpolated_tails_are_near_the_true_ones(units: Path) -> None:
    """Budgets between the measured ones, against the synthetic model's exact tails."""
    predictor = Predictor(load_recordings(units), BINS)
    for pages in (12, 24):
        stream = predictor.predict(BudgetSchedule((pages,))).stream
        for index in (2, 3):
            assert stream.tail(index) == pytest.approx(MODEL.bin_tail(index, pages, bin_tokens=500), abs=0.03)


def test_one_budget_cannot_answer_for_another(tmp_path: Path) -> None:
    TraceSet([trace(16)], meta(policy="static")).save(tmp_path)
    predictor = Predictor(load_recordings(tmp_path), BINS)
    assert predictor.predict(BudgetSchedule((16,))).outside == ()
    with pytest.raises(InputError, match=r"one budget only, 16 pages .* asks for 32; .*sparrow calibrate"):
        predictor.predict(BudgetSchedule((32,)))


def test_rollouts_of_several_directories_are_budgets_of_one_recording(tmp_path: Path) -> None:
    for pages in (8, 16):
        TraceSet([trace(pages, acceptance=_constant)], meta(policy="static")).save(tmp_path / f"{pages}-pages")
    predictor = Predictor(load_recordings(tmp_path), BINS)
    assert predictor.budgets(3) == (8, 16)
    assert predictor.predict(BudgetSchedule((16,))).stream.tail(3) == pytest.approx(0.6, abs=1 / 4096)


def test_a_rollout_whose_budget_varies_within_a_bin_is_refused(tmp_path: Path) -> None:
    TraceSet([trace(8), trace(16, prompt=1)], meta(policy="static")).save(tmp_path)
    with pytest.raises(InputError, match=r"several budgets \(8, 16 pages\)"):
        Predictor(load_recordings(tmp_path), BINS)
