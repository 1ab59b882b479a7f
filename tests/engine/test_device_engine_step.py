"""The device step, run without the host between steps, against the host engine."""

from __future__ import annotations

import pytest
import torch

from sparrow_core.config import load_config
from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.engine import RolloutEngine
from sparrow_core.engine.build import build_engine, build_requests
from sparrow_core.engine.device_sampling import SamplingMode
from sparrow_core.engine.device_step import RING_STEPS, DeviceStep, StepKey, buckets
from sparrow_core.engine.page_pool import PagePool
from sparrow_core.engine.run import Run
from sparrow_core.engine.sequence import SequenceState
from sparrow_core.model import LanguageModel, build_random
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule
from sparrow_core.trace import Trace
from tests.engine.conftest import TINY_LLAMA, make_prompts, overrides

NOISE = 2e-4
"""Largest log-prob difference that float32 kernels of another batch shape make on the tiny model."""

QWEN3 = {**TINY_LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
GROWS_AND_SHRINKS = BudgetSchedule(pages=(6, 4, 9, 5, 14), bin_tokens=12, page_size=4)
DENSE = BudgetSchedule(pages=(DENSE_PAGES,), page_size=4)
LENGTHS = [3, 17, 30, 44, 9]


class Follows(SparsityPolicy):
    """A policy of one given schedule."""

    def __init__(self, schedule: BudgetSchedule, layout: SparseLayout) -> None:
        super().__init__(PluginConfig(type="follows"), layout)
        self._schedule = schedule

    def schedule(self) -> BudgetSchedule:
        return self._schedule


def engine_run(
    model: LanguageModel, settings: dict[str, object], schedule: BudgetSchedule
) -> tuple[RolloutEngine, Run]:
    """An engine and a run whose prompts are prefilled and whose pages reach to each sequence's limit."""
    config = load_config(None, overrides(settings))
    engine = build_engine(model, config.attention, config.rollout)
    policy = Follows(schedule, config.attention.layout)
    requests = build_requests(model, make_prompts(LENGTHS), config.rollout)
    sequences = [engine._admissible(i, request) for i, request in enumerate(requests)]
    pool = PagePool(engine._reserve(sequences))
    run = Run(model, engine.session, engine.options, engine.layout, sequences, pool, policy, 0)
    with model.bind(engine.session):
        while run.scheduler.waiting or run.scheduler.prefilling:
            run._prefill_step()
    for s in run.scheduler.running:
        missing = run.scheduler.num_pages(s.prompt_length + s.max_new_tokens) - len(s.pages)
        s.pages += pool.allocate(min(missing, pool.num_free))
    return engine, run


def device_step(engine: RolloutEngine, run: Run, rows: list[SequenceState]) -> DeviceStep:
    width = max(len(s.pages) for s in rows)
    return DeviceStep(
        run.model,
        run.session,
        run.options,
        run.schedule,
        SamplingMode.of([s.request for s in rows]),
        width=width,
        max_budget=max(run.schedule.pages),
        num_stops=max(len(s.request.sampling.stop_ids) for s in rows),
    )


def host_traces(model: LanguageModel, settings: dict[str, object], schedule: BudgetSchedule) -> list[Trace]:
    config = load_config(None, overrides(settings))
    engine = build_engine(model, config.attention, config.rollout)
    policy = Follows(schedule, config.attention.layout)
    requests = build_requests(model, make_prompts(LENGTHS), config.rollout)
    return sorted(engine.generate(requests, policy), key=lambda t: t.key)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    torch.set_num_threads(1)
    return build_random(TINY_LLAMA if request.param == "llama" else QWEN3, seed=0)


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("schedule", [DENSE, GROWS_AND_SHRINKS], ids=["dense", "sparse"])
@pytest.mark.parametrize("sampling", [{"greedy": True}, {"temperature": 0.8, "top_p": 0.9, "top_k": 12}])
def test_steps_without_the_host_equal_the_host_engine(
    model: LanguageModel, backend: str, schedule: BudgetSchedule, sampling: dict[str, object]
) -> None:
    settings: dict[str, object] = {
        "attention__backend": backend,
        "rollout__max_tokens": 28,
        "rollout__stop_token_ids": "[5, 11, 40]",
        **{f"rollout__{key}": value for key, value in sampling.items()},
    }
    expected = host_traces(model, settings, schedule)
    if schedule is GROWS_AND_SHRINKS:
        changes = [t.pages.diff() for t in expected]
        assert any((d > 1).any() for d in changes), "a budget grows"
        assert any((d < 0).any() for d in changes), "a budget shrinks"
    assert {t.finish_reason for t in expected} >= ({"stop"} if "temperature" in sampling else set())
    engine, run = engine_run(model, settings, schedule)
    rows = sorted(run.scheduler.running, key=lambda s: s.order)
    step = device_step(engine, run, rows)
    step.state.start(rows)
    key = StepKey(step.bucket(len(LENGTHS)), sparse=not run.schedule.is_dense)
    with torch.no_grad(), model.bind(run.session):
        for _ in range(27):
            step.run(key)
    assert step.state.lengths_B.eq(0).all(), "every row ended on the device"
    for s in rows:
        trace = expected[s.order]
        drawn = len(trace.token_ids) - 1
        tokens, pages, finite = step.ring.outcome_R3B[:drawn, :, s.slot].unbind(1)
        assert tokens.tolist() == trace.token_ids[1:].tolist()
        assert pages.tolist() == trace.pages[1:].tolist()
        assert finite.all()
        assert (
            (step.ring.logprobs_RB[:drawn, s.slot] - trace.logprobs[1:]).abs().max().item() < NOISE if drawn else True
        )
        pages_after = step.ring.outcome_R3B[drawn:27, 1, s.slot]
        assert pages_after.eq(0).all(), "an ended row attends to nothing"


def test_an_ended_row_writes_nothing(model: LanguageModel) -> None:
    engine, run = engine_run(model, {"rollout__max_tokens": 6, "rollout__greedy": True}, DENSE)
    rows = list(run.scheduler.running)
    step = device_step(engine, run, rows)
    key = StepKey(8, sparse=False)
    step.state.start(rows)
    step.state.stop([s.slot for s in rows])
    before = engine.cache.k.nan_to_num().clone()
    with torch.no_grad(), model.bind(run.session):
        step.run(key)
    assert torch.equal(engine.cache.k.nan_to_num(), before)
    assert step.state.lengths_B.eq(0).all()


def test_the_ring_wraps(model: LanguageModel) -> None:
    engine, run = engine_run(model, {"rollout__max_tokens": 4}, DENSE)
    step = device_step(engine, run, list(run.scheduler.running))
    with torch.no_grad(), model.bind(run.session):
        for _ in range(RING_STEPS + 3):
            step.run(StepKey(1, sparse=False))
    assert int(step.ring.index_1) == 3


@pytest.mark.parametrize(
    ("max_batch", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_buckets(max_batch: int, sizes: tuple[int, ...]) -> None:
    assert buckets(max_batch) == sizes
