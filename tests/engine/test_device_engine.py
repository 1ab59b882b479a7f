"""Rollouts of the device engine against the host engine: same tokens, same records, same counters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sparrow_core.config import load_config
from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.engine import EngineStats, Request, RolloutEngine, SamplingParams
from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.trace import SampleKey, Trace
from tests.engine.conftest import Rollout, make_prompts, overrides

NOISE = 2e-4
"""Largest difference that float32 kernels of another batch shape make to log-probs and hidden states here."""

SPARSE: dict[str, object] = {"policy": "{type: static, pages: 5}"}
COUNTERS = ("finished", "generated_tokens", "prompt_tokens", "attended_tokens", "dense_tokens")


class GrowsAndShrinks(SparsityPolicy):
    def __init__(self, pages: tuple[int, ...] = (6, 4, 9, 5, 14)) -> None:
        super().__init__(PluginConfig(type="grows_and_shrinks"), SparseLayout(page_size=4))
        self.pages = pages

    def schedule(self) -> BudgetSchedule:
        return BudgetSchedule(pages=self.pages, bin_tokens=12, page_size=4)


class PerSequence(GrowsAndShrinks):
    """Another budget for every sample and length; None, which means the schedule, at some lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def budgets(self, lengths_B: torch.Tensor, keys: list[SampleKey]) -> torch.Tensor | None:  # type: ignore[override]
        self.asked.append(len(keys))
        if int(lengths_B.sum()) % 5 == 0:
            return None
        samples_B = torch.tensor([k.sample + k.prompt for k in keys])
        return (4 + (lengths_B + 3 * samples_B) % 7).to(torch.int32)


def engine_of(model: LanguageModel, **settings: object) -> tuple[RolloutEngine, list[Request]]:
    config = load_config(None, overrides(settings))
    prompts = make_prompts([14, 22, 9])
    return build_engine(model, config.attention, config.rollout), build_requests(model, prompts, config.rollout)


def by_key(traces: Iterator[Trace]) -> list[Trace]:
    return sorted(traces, key=lambda trace: trace.key)


def assert_same(expected: list[Trace], got: list[Trace]) -> None:
    assert [t.key for t in got] == [t.key for t in expected]
    for a, b in zip(expected, got, strict=True):
        assert b.token_ids.tolist() == a.token_ids.tolist()
        assert b.pages.tolist() == a.pages.tolist()
        assert b.finish_reason == a.finish_reason
        assert (b.logprobs - a.logprobs).abs().max() < NOISE
        assert b.topk_ids.shape == a.topk_ids.shape
        assert (b.topk_logprobs - a.topk_logprobs).abs().max() < NOISE
        swapped = b.topk_ids != a.topk_ids
        gaps = (a.topk_logprobs.diff(dim=-1).abs() < NOISE).float()
        near = torch.nn.functional.pad(gaps, (0, 1)) + torch.nn.functional.pad(gaps, (1, 0))
        assert not (swapped & (near == 0))[:, :-1].any(), (
            "ids differ only where their log-probs are equal but for noise"
        )
        assert (a.hidden is None) == (b.hidden is None)
        if a.hidden is not None and b.hidden is not None:
            assert (a.hidden - b.hidden).abs().max() < 10 * NOISE


def assert_same_counters(expected: EngineStats, got: EngineStats) -> None:
    assert {name: getattr(got, name) for name in COUNTERS} == {name: getattr(expected, name) for name in COUNTERS}


CASES: dict[str, dict[str, object]] = {
    "dense": {},
    "greedy": {"rollout__greedy": True},
    "sparse": SPARSE,
    "truncated": {"rollout__temperature": 0.8, "rollout__top_p": 0.9, "rollout__top_k": 12},
    "samples": {"rollout__samples_per_prompt": 3, "rollout__max_batch": 4, **SPARSE},
    "arrivals": {"rollout__max_batch": 2, "rollout__prefill_chunk": 5, "rollout__keep_hidden": True},
    "stops": {"rollout__stop_token_ids": "[5, 11, 40, 60]", "rollout__samples_per_prompt": 2},
}


@pytest.mark.parametrize(("case", "steps_ahead"), [*((case, 16) for case in CASES), ("greedy", 1), ("arrivals", 3)])
def test_a_rollout_equals_the_host_engine(rollout: Rollout, case: str, steps_ahead: int) -> None:
    settings = {"rollout__max_tokens": 24, **CASES[case]}
    prompts = make_prompts([14, 22, 9, 1])
    expected, host = rollout(prompts, rollout__engine="host", **settings)
    got, device = rollout(prompts, rollout__engine="device", rollout__steps_ahead=steps_ahead, **settings)
    assert_same(expected, got)
    assert_same_counters(host, device)


@pytest.mark.parametrize("max_tokens", [1, 2, 16, 17, 18])
def test_limits_at_the_edges_of_blocks(rollout: Rollout, max_tokens: int) -> None:
    prompts = make_prompts([3, 4, 15])
    settings = {"rollout__max_tokens": max_tokens, "rollout__greedy": True}
    expected, host = rollout(prompts, rollout__engine="host", **settings)
    got, device = rollout(prompts, rollout__engine="device", **settings)
    assert_same(expected, got)
    assert host.decode_steps == device.decode_steps


def test_the_context_ends_a_sequence(tiny: LanguageModel, rollout: Rollout) -> None:
    prompts = make_prompts([tiny.context_length - 1, tiny.context_length - 5])
    expected, _ = rollout(prompts, rollout__engine="host", rollout__max_tokens=9)
    got, _ = rollout(prompts, rollout__engine="device", rollout__max_tokens=9)
    assert_same(expected, got)
    assert "context" in {t.finish_reason for t in got}


@pytest.mark.parametrize(("policy", "steps_ahead"), [({}, 16), (SPARSE, 3)], ids=["dense", "sparse"])
def test_preemption_replays_tokens_under_their_budgets(
    rollout: Rollout, policy: dict[str, object], steps_ahead: int
) -> None:
    prompts = make_prompts([14, 22, 9])
    settings = {"rollout__max_tokens": 32, "rollout__samples_per_prompt": 2, "rollout__max_batch": 6, **policy}
    ample, _ = rollout(prompts, rollout__engine="host", **settings)
    tight, stats = rollout(
        prompts, rollout__engine="device", rollout__num_pages=24, rollout__steps_ahead=steps_ahead, **settings
    )
    assert stats.preemptions > 0
    assert stats.replayed_tokens > 0
    assert stats.peak_pages <= 24
    assert_same(ample, tight)


def test_samples_share_their_prompt(rollout: Rollout) -> None:
    settings = {"rollout__samples_per_prompt": 4, "rollout__max_tokens": 16, "rollout__seed": 3}
    got, stats = rollout(make_prompts([21]), rollout__engine="device", **settings)
    assert stats.prompt_tokens == 21
    assert len({tuple(t.token_ids.tolist()) for t in got}) == 4


@pytest.mark.parametrize("num_pages", [None, 24])
def test_a_policy_per_sequence_is_asked_at_every_step(tiny: LanguageModel, num_pages: int | None) -> None:
    settings: dict[str, object] = {
        "rollout__max_tokens": 30,
        "rollout__samples_per_prompt": 2,
        "rollout__num_pages": "null" if num_pages is None else num_pages,
    }
    traces, policies, stats = [], [], []
    for name in ("host", "device"):
        engine, requests = engine_of(tiny, rollout__engine=name, **settings)
        policies.append(PerSequence())
        traces.append(by_key(engine.generate(requests, policies[-1])))
        stats.append(engine.stats)
    assert_same(*traces)
    assert policies[0].asked == policies[1].asked
    assert_same_counters(*stats)
    assert (stats[1].preemptions > 0) == (num_pages is not None)


def test_a_budget_too_small_is_refused(tiny: LanguageModel) -> None:
    class TooSmall(PerSequence):
        def budgets(self, lengths_B: torch.Tensor, keys: list[SampleKey]) -> torch.Tensor:  # type: ignore[override]
            return torch.full_like(lengths_B, 2, dtype=torch.int32)

    engine, requests = engine_of(tiny, rollout__engine="device")
    with pytest.raises(InputError, match="budget of 2 pages"):
        list(engine.generate(requests, TooSmall()))


def test_the_step_is_kept_while_budgets_change_and_weights_do_not_move(tiny: LanguageModel) -> None:
    settings: dict[str, object] = {"rollout__max_tokens": 24}
    device, requests = engine_of(tiny, rollout__engine="device", **settings)
    host, _ = engine_of(tiny, rollout__engine="host", **settings)
    steps = []
    for pages in ((6, 4, 9, 5, 14), (5, 6, 7, 8, 9), (14, 4, 4, 4, 4)):
        policy = GrowsAndShrinks(pages)
        assert_same(by_key(host.generate(requests, policy)), by_key(device.generate(requests, policy)))
        steps.append(device._device_step)
    assert steps[0] is not None
    assert steps[0] is steps[1] is steps[2]
    list(device.generate(requests[:1], GrowsAndShrinks((6, 7))))
    assert device._device_step is not steps[0], "other bins are other operations"


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_rollout_leaves_nothing_behind(tiny: LanguageModel, error: type[BaseException]) -> None:
    engine, requests = engine_of(tiny, rollout__engine="device", rollout__max_tokens=40, rollout__num_pages=24)
    policy = GrowsAndShrinks()
    expected = by_key(engine.generate(requests, policy))

    def interrupt(stats: EngineStats) -> None:
        if stats.decode_steps > 4:
            raise error

    with pytest.raises(error):
        list(engine.generate(requests, policy, on_step=interrupt))
    assert all(layer.attention.inner_attention.session is None for layer in tiny.module.layers.values())
    for trace in engine.generate(requests, policy):
        assert trace.finish_reason
        break
    assert_same(expected, by_key(engine.generate(requests, policy)))


def test_forced_ids_take_the_place_of_draws(tiny: LanguageModel) -> None:
    engine, requests = engine_of(tiny, rollout__engine="device", rollout__max_tokens=30)
    drawn = by_key(engine.generate(requests, GrowsAndShrinks()))
    stop = int(drawn[0].token_ids[3])
    forced = [
        Request(
            t.key,
            r.prompt_ids,
            SamplingParams(max_tokens=30, stop_ids=frozenset({stop})),
            tuple(t.token_ids[:20].tolist()),
        )
        for t, r in zip(drawn, requests, strict=True)
    ]
    host, _ = engine_of(tiny, rollout__engine="host")
    expected = by_key(host.generate(forced, GrowsAndShrinks()))
    got = by_key(engine.generate(forced, GrowsAndShrinks()))
    assert_same(expected, got)
    assert got[0].token_ids[:20].tolist() == drawn[0].token_ids[:20].tolist()


def test_batch_invariant_rollouts_replay_alone_bit_for_bit(tiny: LanguageModel) -> None:
    engine, requests = engine_of(
        tiny, rollout__engine="device", rollout__batch_invariant=True, rollout__max_batch=4, rollout__max_tokens=18
    )
    together = by_key(engine.generate(requests, GrowsAndShrinks()))
    for request, expected in zip(requests, together, strict=True):
        (alone,) = engine.generate([request], GrowsAndShrinks())
        assert alone.equals(expected)


def test_logits_that_are_not_finite_name_the_sample(tiny: LanguageModel) -> None:
    engine, requests = engine_of(tiny, rollout__engine="device", rollout__max_tokens=20)
    weight = tiny.module.norm.weight
    kept = weight.detach().clone()

    def spoil(stats: EngineStats) -> None:
        weight.data.fill_(float("nan"))

    try:
        with pytest.raises(FloatingPointError, match=r"prompt 0, sample 0 are not finite at position \d+"):
            list(engine.generate(requests, GrowsAndShrinks(), on_step=spoil))
    finally:
        weight.data.copy_(kept)


def test_no_requests_give_no_traces(tiny: LanguageModel) -> None:
    config = load_config(None, overrides({"rollout__engine": "device"}))
    engine = build_engine(tiny, config.attention, config.rollout)
    assert list(engine.generate([], build_policy(config.policy, config.attention.layout))) == []
