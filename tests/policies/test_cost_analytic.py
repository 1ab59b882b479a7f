"""The analytic cost model: its terms, its integral, the published closed forms and what follows from them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule
from sparrow_core.search import bin_costs, trajectory_cost
from sparrow_policies.cost import HARDWARE, MODELS, AnalyticCost, AnalyticEquivalentFlops, ModelShape
from sparrow_policies.cost.analytic import AnalyticConfig, EquivalentFlopsConfig

TINY = ModelShape(num_layers=4, num_heads=12, num_kv_heads=4, head_dim=8, parameters=10_000)
NO_DENSE_LAYERS = SparseLayout(dense_layers=())

PUBLISHED_MIDDLE_PAGES = {
    "qwen3-1.7b": [29, 61, 93, 93, 125, 157, 189, 221, 221, *[253] * 11],
    "qwen3-4b": [29, 45, 61, 77, 93, 125, 157, 221, 253, 253, *[317] * 4, *[381] * 4, 509, 509],
    "qwen3-8b": [29, 45, 61, 77, 125, 157, 189, *[253] * 4, *[317] * 6, 385, 445, 445],
    "qwen3-14b": [29, 45, 77, 125, 253, *[381] * 10, 509, 637, 637, 893, 893],
}
"""The tau = 0.86 schedules of arXiv 2606.08446, without the 1 + 2 reserved pages."""


def model(layout=None, landmark_vectors=1, **config):
    config = {"model": TINY, "hardware": "h200", **config}
    return AnalyticCost(AnalyticConfig(**config), layout or SparseLayout(), landmark_vectors)


def step(cost, lengths, pages):
    return cost.step_cost(torch.tensor(lengths), torch.tensor(pages))


def work(cost, lengths, pages):
    return cost.step_work(torch.tensor(lengths), torch.tensor(pages))


def published_schedule(name):
    return BudgetSchedule(tuple(pages + 3 for pages in PUBLISHED_MIDDLE_PAGES[name]))


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen3-1.7b", 1.72), ("qwen3-4b", 4.02), ("qwen3-8b", 7.57), ("qwen3-14b", 13.99)]
)
def test_parameters_read_per_step(name, billions):
    """8B and 14B leave out the untied input embedding, of which a step reads one row per sequence."""
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (32, {"1.7b": 3.16, "4b": 2.81, "8b": 2.48, "14b": 1.89}),
        (16, {"1.7b": 2.84, "4b": 2.42, "8b": 2.04, "14b": 1.60}),
    ],
    ids=["batch-32", "batch-16"],
)
def test_ideal_speedup_at_the_published_schedules_falls_with_model_size(batch, expected):
    """Byte floor at 4.3 TB/s, lengths 0 to 32K, layers 0 and 1 dense; within 2 %."""
    speedups = []
    for size, speedup in expected.items():
        name = f"qwen3-{size}"
        cost = model(model=name, hardware={"flops": 989e12, "bandwidth": 4.3e12}, bound="bandwidth")
        span = {"start": 0, "stop": 32_000, "batch": batch, "stride": 20}
        dense = trajectory_cost(cost, BudgetSchedule((DENSE_PAGES,)), **span)
        speedups.append(dense / trajectory_cost(cost, published_schedule(name), **span))
        assert speedups[-1] == pytest.approx(speedup, rel=0.02)
    assert speedups == sorted(speedups, reverse=True)


# Closed forms of the paper with D = key plus value width over all layers, whole-step integrals over the outputs.


def closed_forms(shape, samples, prompt, output, attended, page_size, flops_per_byte):
    """Compute and memory parts of dense attention, sparse attention and scoring, in eFLOP; bf16."""
    D, r = 2 * shape.num_layers * shape.key_width, shape.group_size
    context = prompt * output + output**2 / 2
    dense = (2 * r * samples * D * context, flops_per_byte * 2 * samples * D * context)
    sparse = (2 * r * samples * D * attended * output, flops_per_byte * 2 * samples * D * attended * output)
    scoring = (r * samples * D * context / page_size, flops_per_byte * samples * D * context / page_size)
    return dense, sparse, scoring


def printed_scoring(shape, samples, prompt, output, page_size, flops_per_byte):
    D, r = 2 * shape.num_layers * shape.key_width, shape.group_size
    compute = 2 * samples * prompt * D * output / page_size + r * samples * D * output**2 / (2 * page_size)
    memory = flops_per_byte * (2 * prompt * D * output + samples * D * output**2 / 2) / page_size
    return compute, memory


def integrate(cost, samples, prompt, output, pages):
    """Sum of the per-step work of sparse attention and scoring over all output tokens."""
    steps = [work(cost, [n] * samples, [pages] * samples) for n in range(prompt + 1, prompt + output + 1)]
    return {
        name: (sum(getattr(s, name).flops for s in steps), sum(getattr(s, name).bytes for s in steps))
        for name in ("weights", "sparse_layers", "scoring")
    }


@pytest.mark.parametrize("prompt", [0, 600], ids=["no-prompt", "prompt"])
def test_per_step_form_integrates_to_the_closed_forms(prompt):
    samples, output, pages = 3, 2000, 8
    cost = model(NO_DENSE_LAYERS, score_per_query_head=True)
    ratio = HARDWARE["h200"].flops_per_byte
    dense, sparse, scoring = closed_forms(TINY, samples, prompt, output, pages * 16, 16, ratio)
    found_dense = integrate(cost, samples, prompt, output, DENSE_PAGES)
    found = integrate(cost, samples, prompt, output, pages)
    as_eflop = {k: (flops, ratio * size) for k, (flops, size) in found.items()}
    assert found_dense["sparse_layers"][0] == pytest.approx(dense[0], rel=2e-3)
    assert ratio * found_dense["sparse_layers"][1] == pytest.approx(dense[1], rel=2e-3)
    assert found_dense["scoring"] == (0, 0)
    assert found["weights"][0] == 2 * TINY.parameters * samples * output
    # Partial last pages, and steps shorter than the budget, hold fewer tokens than B.
    assert as_eflop["sparse_layers"] == pytest.approx(sparse, rel=0.1)
    assert as_eflop["scoring"] == pytest.approx(scoring, rel=0.02)


def test_printed_scoring_cost_is_consistent_only_without_a_prompt():
    """Its prompt terms have 2 where the output terms have r (compute), and lack N and have 2 for 1 (memory)."""
    args = (TINY, 4, 0, 2000)
    scoring = closed_forms(*args, 128, 16, 206)[2]
    assert printed_scoring(*args, 16, 206) == pytest.approx(scoring)
    with_prompt = (TINY, 4, 600, 2000)
    scoring = closed_forms(*with_prompt, 128, 16, 206)[2]
    compute, memory = printed_scoring(*with_prompt, 16, 206)
    assert compute / scoring[0] == pytest.approx((2 * 600 + 3 * 1000) / (3 * 1600))
    assert memory / scoring[1] == pytest.approx((2 * 600 + 4 * 1000) / (4 * 1600))


def test_dense_layers_are_charged_for_the_whole_context():
    layout = SparseLayout(dense_layers=(0, 1))
    found = work(model(layout), [1600], [10])
    assert found.dense_layers.bytes == 2 * 32 * 2 * 1600 * 2
    assert found.sparse_layers.bytes == 2 * 32 * 2 * 160 * 2
    assert found.scoring.bytes == 2 * 32 * 2 * 100


def test_weights_are_read_once_per_step_and_shared_by_the_batch():
    cost = model()
    assert work(cost, [100], [4]).weights.bytes == work(cost, [100] * 8, [4] * 8).weights.bytes == 20_000
    assert work(cost, [100] * 8, [4] * 8).weights.flops == 8 * work(cost, [100], [4]).weights.flops


@pytest.mark.parametrize(("vectors", "factor"), [(0, 0), (1, 1), (2, 2)], ids=["window", "mean", "quest"])
def test_scan_grows_with_landmark_vectors(vectors, factor):
    one = work(model(), [1600], [10]).scoring.bytes
    assert work(model(landmark_vectors=vectors), [1600], [10]).scoring.bytes == factor * one


def test_scoring_and_selection_matter_at_131k():
    """Left out, a step of sparse attention at 131K would look several times cheaper than it is."""
    found = work(model(NO_DENSE_LAYERS), [131_072], [64])
    scan = found.scoring.bytes + found.selection.bytes
    assert (found.sparse_layers.bytes + scan) / found.sparse_layers.bytes > 4


@given(
    st.integers(1, 3000),
    st.integers(4, 200),
    st.sampled_from([1, 8, 16, 64]),
    st.sampled_from(["roofline", "sum", "bandwidth"]),
)
@settings(deadline=None)
def test_cost_rises_with_budget_and_length(length, pages, page_size, bound):
    """Length in whole pages, since the last page may be partial. Budgets that leave pages out: one that covers all
    saves the scan and may be cheaper."""
    cost = model(SparseLayout(page_size=page_size), bound=bound)
    here = step(cost, [length], [pages])
    assert step(cost, [length + page_size], [pages]) >= here * (1 - 1e-12)
    assert here > 0
    if pages + 1 < -(-length // page_size):
        assert step(cost, [length], [pages + 1]) > here
    dense = work(cost, [length], [DENSE_PAGES])
    assert work(cost, [length], [pages]).sparse_layers.bytes <= dense.sparse_layers.bytes
    assert dense == work(cost, [length], [-(-length // page_size)])


def test_empty_rows_cost_nothing_and_rows_add_up():
    cost = model(bound="bandwidth")
    assert step(cost, [500, 0], [8, 8]) == step(cost, [500], [8])
    a, b = work(cost, [500], [8]), work(cost, [700], [9])
    both = work(cost, [500, 700], [8, 9])
    assert both.bytes == a.bytes + b.bytes - a.weights.bytes
    assert step(cost, [0], [8]) == 0


def test_bounds_are_ordered_and_overhead_adds():
    args = ([4096] * 4, [32] * 4)
    bandwidth, roofline, total = (step(model(bound=b), *args) for b in ("bandwidth", "roofline", "sum"))
    assert bandwidth <= roofline <= total <= 2 * roofline
    assert step(model(overhead_seconds=1.0), *args) == pytest.approx(1.0 + roofline)
    assert step(model(bandwidth_fraction=0.5, bound="bandwidth"), *args) == pytest.approx(2 * bandwidth)


def test_equivalent_flops_are_flops_plus_i_times_bytes():
    eflop = AnalyticEquivalentFlops(EquivalentFlopsConfig(model=TINY, hardware="h200"), SparseLayout())
    found = work(eflop, [5000], [32])
    assert step(eflop, [5000], [32]) == pytest.approx(found.flops + 989e12 / 4.8e12 * found.bytes)
    assert eflop.unit == "eFLOP"


def test_prefill_is_counted_by_itself():
    cost = model()
    weights, attention = cost.prefill_work(torch.tensor([100, 50]))
    assert weights.flops == 2 * TINY.parameters * 150
    assert attention.flops == 4 * 96 * 4 * (5050 + 1275)
    assert cost.prefill_cost(torch.tensor([100, 50])) > 0


def tokens_needed(page_size, gain):
    """Tokens for one and the same tail by page size: page 16's, and ``2 ** gain`` times as many per doubling."""
    return 16 * 160 * (page_size / 16) ** gain


@pytest.mark.parametrize(
    ("gain", "best"), [(0.35, 16), (0.0, 128)], ids=["smaller-pages-need-fewer-tokens", "page-size-is-free"]
)
def test_page_16_beats_larger_pages_at_equal_tail_if_they_need_more_tokens(gain, best):
    """The published claim rests on measured tails, which are assumed here: each doubling of the page needs 27 %
    more tokens for the same tail at 16K. Were tokens needed independent of page size, larger pages would win,
    since the landmark scan falls as 1 / s."""
    costs = {}
    for page_size in (16, 32, 64, 128):
        cost = model(SparseLayout(page_size=page_size), model="qwen3-8b", bound="bandwidth")
        pages = round(tokens_needed(page_size, gain) / page_size)
        costs[page_size] = step(cost, [16_384] * 32, [pages] * 32)
    assert min(costs, key=costs.__getitem__) == best


def test_smaller_pages_than_16_pay_more_for_the_scan_than_they_save():
    """Under the same assumption the scan's growth makes page 4 lose to 16: the Pareto front has an interior."""
    costs = {}
    for page_size in (4, 16):
        cost = model(SparseLayout(page_size=page_size), model="qwen3-8b", bound="bandwidth")
        pages = round(tokens_needed(page_size, 0.35) / page_size)
        costs[page_size] = step(cost, [16_384] * 32, [pages] * 32)
    assert costs[16] < costs[4]


def test_bin_costs_weigh_tokens_and_match_the_trajectory():
    cost = model()
    kwargs = {"bin_tokens": 200, "num_bins": 3, "batch": 4}
    table = bin_costs(cost, [4, 8], points=200, **kwargs)
    for row, pages in enumerate((4, 8)):
        total = trajectory_cost(cost, BudgetSchedule((pages,) * 3, bin_tokens=200), start=0, stop=600, batch=4)
        assert table[row].sum() == pytest.approx(total, rel=5e-3)
    doubled = bin_costs(cost, [4], tokens_per_bin=[400, 0, 200], points=200, **kwargs)[0]
    assert doubled == pytest.approx(table[0] * [2, 0, 1])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hardware": "h300"}, "h300.*use one of a100, h100, h200, b200, cpu"),
        ({"model": "qwen9"}, "qwen9.*use one of qwen3-1.7b"),
        ({"bandwidth_fraction": 1.5}, "bandwidth_fraction"),
        ({"typo": 1}, "typo"),
    ],
    ids=["hardware", "model", "fraction", "unknown-key"],
)
def test_bad_config_names_key_and_value(config, message):
    with pytest.raises(ValidationError, match=f"(?s){message}"):
        model(**config)


def test_hf_config_of_another_kind_is_refused():
    with pytest.raises(InputError, match="num_experts=128"):
        ModelShape.from_hf_config({"num_experts": 128})
    with pytest.raises(InputError, match="hidden_size=None"):
        ModelShape.from_hf_config({})
    with pytest.raises(InputError, match=r"\[2\] and \[1\]"):
        step(model(), [1, 2], [4])
