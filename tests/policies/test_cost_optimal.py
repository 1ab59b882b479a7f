"""The cheapest schedule that meets tau: against brute force on a table, and learned from rollouts."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sparrow_core import registry
from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream
from sparrow_core.schedule import DENSE_PAGES
from sparrow_core.search import TailEntry, TailRow, TailTable, bin_costs
from sparrow_core.testing import PolicyConformance
from sparrow_core.testing.simulator import SyntheticMismatch, simulate
from sparrow_policies.cost.analytic import AnalyticConfig, AnalyticCost
from sparrow_policies.cost_optimal import CostOptimalConfig, CostOptimalPolicy

TAU = 0.86
MODEL = SyntheticMismatch()
GRID = (8, 16, 32, 48, 64, 96, 128, 192, 256, 512)
NUM_BINS = 3


@pytest.fixture(autouse=True)
def analytic_cost_is_known():
    is_new = "analytic" not in registry.names("sparrow.cost_models")
    if is_new:
        registry.register("sparrow.cost_models", "analytic", AnalyticCost)
    yield
    if is_new:
        registry.unregister("sparrow.cost_models", "analytic")


def make(**config):
    return CostOptimalPolicy(CostOptimalConfig(num_bins=NUM_BINS, **config), SparseLayout())


def row(pages, tails, selector="mean_landmark", page_size=16, width=0.01, tokens=2000):
    entries = [
        None if t is None else TailEntry(tokens=tokens, tail=t, low=max(t - width, 0), high=min(t + width, 1))
        for t in tails
    ]
    return TailRow(selector=selector, page_size=page_size, pages=pages, bins=tuple(entries))


@pytest.fixture
def table(tmp_path):
    def write(*rows, **header):
        path = tmp_path / "tails.json"
        TailTable(quantile=0.05, bin_tokens=2000, rows=rows, **header).write(path)
        return str(path)

    return write


def synthetic_rows(width=0.0):
    return [row(pages, [MODEL.bin_tail(b, pages) for b in range(NUM_BINS)], width=width) for pages in GRID]


def smallest_sufficient(tau=TAU, at_least=0.0):
    return tuple(min(p for p in GRID if MODEL.bin_tail(b, p) >= tau + at_least) for b in range(NUM_BINS))


class TestConformance(PolicyConformance):
    policy = CostOptimalPolicy
    config = CostOptimalConfig(budgets=(4, 8, 64, 256))


def test_takes_the_smallest_sufficient_budget_of_a_table(table):
    policy = make(table=table(*synthetic_rows()))
    assert policy.schedule().pages == smallest_sufficient()


def test_the_lower_confidence_bound_must_meet_tau(table):
    """0.01 above tau, as surely as 0.02 either way, is not enough."""
    policy = make(table=table(row(32, [0.87] * 3, width=0.02), row(64, [0.9] * 3, width=0.02)))
    assert policy.schedule().pages == (64, 64, 64)


tails = st.sampled_from([0.5, 0.84, 0.87, 0.9, 0.99])


@given(st.dictionaries(st.sampled_from(GRID), st.tuples(tails, tails, tails), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_equals_brute_force_under_the_analytic_cost(tmp_path_factory, measured):
    path = tmp_path_factory.mktemp("tables") / "tails.json"
    rows = tuple(row(pages, values) for pages, values in measured.items())
    TailTable(quantile=0.05, bin_tokens=2000, rows=rows).write(path)
    cost = AnalyticConfig(model="qwen3-8b")
    pages = make(table=str(path), cost=cost).schedule().pages
    options = [*sorted(measured), DENSE_PAGES]
    costs = bin_costs(
        AnalyticCost(cost, SparseLayout()), options, bin_tokens=2000, num_bins=NUM_BINS, batch=32, points=4
    )
    by_pages = dict(zip(options, costs.tolist(), strict=True))
    good = [[p for p in options if p == DENSE_PAGES or measured[p][b] - 0.01 >= TAU] for b in range(NUM_BINS)]

    def total(assignment):
        return sum(by_pages[p][b] for b, p in enumerate(assignment))

    feasible = [a for a in itertools.product(*good) if list(a) == sorted(a)]
    assert pages in feasible
    assert total(pages) == pytest.approx(min(map(total, feasible)))


def test_a_bin_without_a_sufficient_budget_is_attended_to_densely(table):
    policy = make(table=table(row(32, [0.9, 0.9, 0.7]), row(64, [0.95, 0.9, 0.8])))
    assert policy.schedule().pages == (32, 32, DENSE_PAGES)


def test_unmeasured_bins_inherit_from_longer_ones(table):
    policy = make(table=table(row(32, [None, 0.8, None]), row(64, [None, 0.9, None])))
    assert policy.schedule().pages == (64, 64, 64)


def test_rollouts_correct_the_table(table):
    """The table flatters 32 pages; the rollouts show what they are worth."""
    policy = make(table=table(*[row(p, [0.95] * NUM_BINS) for p in GRID if p >= 32]))
    assert policy.schedule().pages == (32, 32, 32)
    for step in range(12):
        policy.observe(simulate(MODEL, policy.schedule(), tokens_per_bin=4000, seed=step))
    assert policy.schedule().pages == smallest_sufficient()


def test_best_configuration_looks_at_every_selector_and_page_size(table):
    """Quest needs a third of the pages here; the session's own schedule stays with its own selector."""
    rows = [row(96, [0.9] * 3), row(32, [0.9] * 3, selector="quest"), row(64, [0.9] * 3, page_size=64)]
    path = table(*rows)
    for cost in (None, AnalyticConfig(model="qwen3-8b")):
        policy = make(table=path, cost=cost)
        assert policy.schedule().pages == (96, 96, 96)
        assert set(policy.best_configuration().kernels) == {("quest", 16)}


def test_two_landmark_vectors_cost_more_to_scan(table):
    rows = [row(96, [0.9] * 3), row(96, [0.9] * 3, selector="quest")]
    policy = make(table=table(*rows), cost=AnalyticConfig(model="qwen3-8b"))
    assert set(policy.best_configuration().kernels) == {("mean_landmark", 16)}


def test_learns_the_grids_best_budgets_without_a_table():
    """From the largest budget down; each bin ends at most one budget above the smallest that exceeds tau + 0.01,
    and no rollout ran more than 0.015 below tau."""
    policy = make(budgets=GRID)
    assert policy.schedule().pages == (512, 512, 512)
    for step in range(25):
        schedule = policy.schedule()
        assert all(MODEL.bin_tail(b, p) >= TAU - 0.015 for b, p in enumerate(schedule.pages))
        policy.observe(simulate(MODEL, schedule, seed=step))
    found = policy.schedule().pages
    upper = smallest_sufficient(at_least=0.01)
    assert all(low <= page <= high for low, page, high in zip(smallest_sufficient(), found, upper, strict=True))


def test_an_easier_model_frees_smaller_budgets_again():
    policy = make(budgets=GRID)
    for step in range(15):
        policy.observe(simulate(MODEL, policy.schedule(), seed=step))
    before = policy.schedule().pages
    easier = SyntheticMismatch(pages_at_1k=12)
    for step in range(15):
        policy.observe(simulate(easier, policy.schedule(), seed=100 + step))
    assert all(after < was for after, was in zip(policy.schedule().pages, before, strict=True))


@given(st.lists(st.tuples(st.floats(0.2, 4.0), st.sampled_from([0, 200, 800])), max_size=6), st.integers(0, 6))
@settings(max_examples=20, deadline=None)
def test_any_history_gives_known_budgets_that_rise_and_can_be_restored(history, stop):
    policy, twin = make(budgets=GRID), make(budgets=GRID)
    for step, (strength, tokens) in enumerate(history):
        if step == stop:
            restored = make(budgets=GRID)
            restored.load_state_dict(json.loads(json.dumps(twin.state_dict())))
            twin = restored
        stream = simulate(
            SyntheticMismatch(pages_at_1k=32 * strength), policy.schedule(), tokens_per_bin=tokens, seed=step
        )
        policy.observe(stream)
        twin.observe(stream)
        pages = policy.schedule().pages
        assert set(pages) <= {*GRID, DENSE_PAGES}
        assert list(pages) == sorted(pages)
        assert twin.schedule() == policy.schedule()
    assert twin.state_dict() == policy.state_dict()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tau": 1.0, "budgets": GRID}, "tau"),
        ({}, "exactly one of 'table'"),
        ({"budgets": GRID, "table": "x"}, "exactly one of 'table'"),
        ({"budgets": (8, 8)}, "each once"),
    ],
    ids=["tau", "neither", "both", "repeated"],
)
def test_bad_config_is_refused(config, message):
    with pytest.raises(ValidationError, match=message):
        CostOptimalConfig(**config)


def test_tables_that_do_not_fit_are_refused(table, tmp_path):
    with pytest.raises(InputError, match="no row for selector mean_landmark with page size 16; it has quest with 16"):
        make(table=table(row(32, [0.9] * 3, selector="quest")))
    with pytest.raises(InputError, match=r"has num_bins=2, but policy.num_bins=3"):
        make(table=table(row(32, [0.9] * 2)))
    with pytest.raises(InputError, match="cannot be read"):
        make(table=str(tmp_path / "missing.json"))
    with pytest.raises(InputError, match=r"budget 2 is below sink \+ recent \+ 1 = 4"):
        make(budgets=(2, 8))
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"rows": []}')
    with pytest.raises(InputError, match="is not valid"):
        make(table=str(damaged))
    with pytest.raises(ValidationError, match="repeats selector"):
        TailTable(quantile=0.05, bin_tokens=2000, rows=(row(8, [0.9]), row(8, [0.9])))


def test_streams_and_states_of_another_shape_are_refused():
    policy = make(budgets=GRID)
    with pytest.raises(InputError, match="bin_tokens=500"):
        policy.observe(MismatchStream(bin_tokens=500, num_bins=NUM_BINS))
    with pytest.raises(InputError, match="lacks 'tails'"):
        policy.load_state_dict({"other": 1})
