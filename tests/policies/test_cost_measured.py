"""The measured cost model: recovers a known machine, reports its error, refuses what it did not see."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.schedule import DENSE_PAGES
from sparrow_policies.cost import AnalyticCost, MeasuredCost, MeasuredRow, fit_measured, load_measured, save_measured
from sparrow_policies.cost.analytic import AnalyticConfig
from sparrow_policies.cost.measured import MeasuredConfig

H200 = AnalyticCost(AnalyticConfig(model="qwen3-4b", overhead_seconds=1e-3, bound="bandwidth"), SparseLayout())
GRID = [(b, n, p) for b in (4, 16, 32) for n in (2000, 8000, 16000, 32000) for p in (32, 128, 256, None)]


def step(cost, lengths, pages):
    return cost.step_cost(torch.tensor(lengths), torch.tensor(pages))


def timed_rows(noise=0.0, grid=GRID, machine=H200):
    rng = np.random.default_rng(0)
    for batch, length, pages in grid:
        seconds = step(machine, [length] * batch, [pages or DENSE_PAGES] * batch)
        yield MeasuredRow(batch=batch, length=length, pages=pages, seconds=seconds * np.exp(noise * rng.normal()))


def test_fit_recovers_a_linear_machine_and_predicts_between_the_points():
    """Not exactly: the machine also writes the chosen pages' ids, which the model leaves out."""
    fit = fit_measured(timed_rows())
    assert fit.max_relative_error < 0.005
    for lengths, pages in [([5000] * 20, [64] * 20), ([3000, 30_000, 12_000, 9_000], [32, 200, DENSE_PAGES, 100])]:
        assert step(fit, lengths, pages) == pytest.approx(step(H200, lengths, pages), rel=0.01)


def test_noise_of_three_percent_is_reported_as_such():
    fit = fit_measured(timed_rows(noise=0.03))
    assert 0.01 < fit.mean_relative_error < 0.04
    assert "relative error mean" in fit.describe()
    assert step(fit, [16_000] * 16, [128] * 16) == pytest.approx(step(H200, [16_000] * 16, [128] * 16), rel=0.04)


def test_coefficients_are_never_negative():
    rows = [MeasuredRow(batch=1, length=n, pages=p, seconds=1e-3) for n in (100, 1000) for p in (4, 8, None)]
    assert (fit_measured(rows).coefficients >= 0).all()


@pytest.mark.parametrize(
    ("lengths", "pages", "message"),
    [
        ([41_000] * 8, [64] * 8, "length=41000 lies beyond the measured table's 32000 by more than a factor of 1.25"),
        ([1000] * 41, [64] * 41, "batch=41 lies beyond"),
        ([1000] * 3, [64] * 3, "batch=3 lies below"),
    ],
    ids=["length", "batch-above", "batch-below"],
)
def test_extrapolation_is_refused(lengths, pages, message):
    fit = fit_measured(timed_rows())
    with pytest.raises(InputError, match=message):
        step(fit, lengths, pages)
    assert step(fit, [40_000] * 4, [64] * 4) > 0
    assert step(fit, [1] * 4, [64] * 4) > 0


def test_dense_steps_are_refused_when_only_sparse_ones_were_timed():
    fit = fit_measured(timed_rows(grid=[row for row in GRID if row[2] is not None]))
    with pytest.raises(InputError, match="attended tokens per sequence=32000"):
        step(fit, [32_000] * 8, [DENSE_PAGES] * 8)


def test_saved_table_gives_the_same_model(tmp_path):
    path = tmp_path / "cost.json"
    fit = fit_measured(timed_rows(noise=0.02), device="H200", model="qwen3-4b")
    save_measured(fit, path)
    loaded = load_measured(path)
    assert loaded.table.device == "H200"
    assert (loaded.coefficients == fit.coefficients).all()


def test_the_table_with_the_layouts_page_size_is_chosen(tmp_path):
    tables = []
    for page_size in (16, 32):
        layout = SparseLayout(page_size=page_size)
        tables.append(fit_measured(timed_rows(), layout).table)
    config = MeasuredConfig(tables=tuple(tables))
    assert MeasuredCost(config, SparseLayout(page_size=32)).table.page_size == 32
    with pytest.raises(InputError, match="page sizes 16, 32, but exactly one with page size 64"):
        MeasuredCost(config, SparseLayout(page_size=64))


def test_bad_tables_say_what_to_do(tmp_path):
    rows = list(timed_rows())
    with pytest.raises(InputError, match="has 2 rows; time at least 5"):
        fit_measured(rows[:2])
    with pytest.raises(InputError, match="at least two lengths and two budgets"):
        fit_measured([row for row in rows if row.pages == 32])
    with pytest.raises(InputError, match="paths is empty"):
        MeasuredCost(MeasuredConfig(), SparseLayout())
    with pytest.raises(InputError, match="cannot be read"):
        load_measured(tmp_path / "missing.json")
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps({"version": 1, "page_size": 16, "rows": [{"batch": 0}]}))
    with pytest.raises(InputError, match="is not valid"):
        load_measured(damaged)
