"""The rollout engine end to end on a tiny random model."""

from __future__ import annotations

import pytest
import torch

from sparrow_core import registry
from sparrow_core.config import load_config
from sparrow_core.engine import EngineOptions, Request, SamplingParams
from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.errors import InputError, OutOfPagesError
from sparrow_core.measure.score import score_traces
from sparrow_core.model import LanguageModel
from sparrow_core.trace import Trace
from tests.engine.conftest import Rollout, make_prompts, overrides

NOISE = 2e-4
"""Largest log-prob difference that float32 kernels of another batch shape make on the tiny model."""

SPARSE = {"policy": "{type: static, pages: 5}"}


def tokens(traces: list[Trace]) -> list[list[int]]:
    return [trace.token_ids.tolist() for trace in traces]


def largest_difference(first: list[Trace], second: list[Trace]) -> float:
    assert tokens(first) == tokens(second)
    return max((a.logprobs - b.logprobs).abs().max().item() for a, b in zip(first, second, strict=True))


def greedy_by_hand(model: LanguageModel, prompt: tuple[int, ...], count: int) -> list[int]:
    """The slow way: one full forward per token, no cache."""
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            hidden = model.hidden(torch.tensor([ids]))
        ids.append(int(model.logits(hidden[0, -1]).argmax()))
        if ids[-1] in model.eos_ids:
            break
    return ids[len(prompt) :]


@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
def test_dense_greedy_equals_a_full_forward_per_token(tiny: LanguageModel, rollout: Rollout, chunk: int) -> None:
    prompts = make_prompts([1, 3, 4, 5, 17])
    traces, _ = rollout(prompts, rollout__greedy=True, rollout__max_tokens=12, rollout__prefill_chunk=chunk)
    assert tokens(traces) == [greedy_by_hand(tiny, p, 12) for p in prompts]


def test_full_budget_is_dense_and_leaves_acceptance_at_the_noise_floor(tiny: LanguageModel, rollout: Rollout) -> None:
    prompts = make_prompts([9, 30])
    dense, _ = rollout(prompts, rollout__max_tokens=20, rollout__keep_hidden=True)
    full, stats = rollout(
        prompts, policy="{type: static, pages: 40}", rollout__max_tokens=20, rollout__keep_hidden=True
    )
    assert largest_difference(dense, full) == 0
    assert stats.attended_tokens == stats.dense_tokens
    for trace in score_traces(tiny, full):
        assert trace.scores().acceptance_exact.min() > 1 - NOISE
        assert (trace.scores().logprobs - trace.logprobs).abs().max() < NOISE


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_dense_ratio_is_one_on_an_unchanged_policy(tiny: LanguageModel, rollout: Rollout, temperature: float) -> None:
    traces, _ = rollout(make_prompts([2, 15, 40]), rollout__temperature=temperature, rollout__max_tokens=16)
    for trace in score_traces(tiny, traces):
        ratio = (trace.scores().logprobs - trace.logprobs).exp()
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=NOISE, rtol=0)


def test_a_small_budget_attends_to_less_and_drifts(tiny: LanguageModel, rollout: Rollout) -> None:
    prompts = make_prompts([60, 80])
    traces, stats = rollout(prompts, rollout__max_tokens=24, rollout__keep_hidden=True, **SPARSE)
    assert stats.attended_tokens < stats.dense_tokens
    scored = score_traces(tiny, traces)
    values = torch.cat(
        [t.dense.acceptance_exact[1:] for t in scored if t.dense and t.dense.acceptance_exact is not None]
    )
    assert values.min() < 0.99, "the budget did not change the distribution: the sparse path was not taken"
    for scores in (trace.scores() for trace in scored):
        assert (scores.acceptance_lower <= scores.acceptance_exact + 1e-5).all()
        assert (scores.acceptance_exact <= scores.acceptance_upper + 1e-5).all()


def test_pages_are_recorded_and_capped_at_the_context(rollout: Rollout) -> None:
    (trace,), _ = rollout(make_prompts([10]), rollout__max_tokens=20, **SPARSE)
    num_pages = (trace.lengths + 3) // 4
    expected = torch.minimum(num_pages, torch.tensor(5))
    expected[0] = num_pages[0]  # the first token comes from the dense prefill
    assert trace.pages.tolist() == expected.tolist()


@pytest.mark.parametrize("policy", [{}, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("max_batch", [1, 2, 7])
def test_output_does_not_depend_on_the_batch(rollout: Rollout, policy: dict[str, str], max_batch: int) -> None:
    prompts = make_prompts([3, 26, 33, 9])
    settings = {"rollout__max_tokens": 18, "rollout__samples_per_prompt": 2, **policy}
    together, _ = rollout(prompts, rollout__max_batch=8, **settings)
    other, _ = rollout(prompts, rollout__max_batch=max_batch, **settings)
    assert largest_difference(together, other) < NOISE


@pytest.mark.parametrize("policy", [{}, SPARSE], ids=["dense", "sparse"])
def test_batch_invariant_rollouts_replay_alone_bit_for_bit(
    tiny: LanguageModel, rollout: Rollout, policy: dict[str, str]
) -> None:
    prompts = make_prompts([5, 31, 18])
    settings = {"rollout__max_tokens": 18, "rollout__batch_invariant": True, "rollout__max_batch": 4, **policy}
    together, _ = rollout(prompts, **settings)
    config = load_config(None, overrides(settings))
    engine = build_engine(tiny, config.attention, config.rollout)

    for request, expected in zip(build_requests(tiny, prompts, config.rollout), together, strict=True):
        (alone,) = engine.generate([request], build_policy(config.policy, config.attention.layout))
        assert alone.equals(expected)


def test_samples_of_a_prompt_differ_and_replay(rollout: Rollout) -> None:
    settings = {"rollout__samples_per_prompt": 4, "rollout__max_tokens": 16, "rollout__seed": 3}
    first, stats = rollout(make_prompts([21]), **settings)
    again, _ = rollout(make_prompts([21]), **settings)
    assert len({tuple(t) for t in tokens(first)}) == 4
    assert all(a.equals(b) for a, b in zip(first, again, strict=True))
    assert stats.prompt_tokens == 21, "the shared prompt is prefilled once"
    other_step, _ = rollout(make_prompts([21]), rollout__step=1, **settings)
    assert tokens(other_step) != tokens(first)


@pytest.mark.parametrize("policy", [{}, SPARSE], ids=["dense", "sparse"])
def test_preemption_loses_nothing_and_gives_the_same_tokens(rollout: Rollout, policy: dict[str, str]) -> None:
    prompts = make_prompts([14, 22, 9])
    settings = {"rollout__max_tokens": 40, "rollout__samples_per_prompt": 2, "rollout__max_batch": 6, **policy}
    ample, without = rollout(prompts, **settings)
    tight, stats = rollout(prompts, rollout__num_pages=24, **settings)
    assert without.preemptions == 0
    assert stats.preemptions > 0
    assert stats.replayed_tokens > 0
    assert largest_difference(ample, tight) < NOISE
    assert [t.pages.tolist() for t in ample] == [t.pages.tolist() for t in tight]


def test_forced_tokens_are_scored_in_place_of_draws(tiny: LanguageModel, rollout: Rollout) -> None:
    (drawn,), _ = rollout(make_prompts([12]), rollout__max_tokens=10)
    forced = tuple(drawn.token_ids.tolist())
    engine = build_engine(tiny, load_config(None, ["attention.page_size=4"]).attention, load_config(None).rollout)
    request = Request(drawn.key, make_prompts([12])[0], SamplingParams(max_tokens=len(forced)), forced)

    dense = build_policy(registry.load("sparrow.policies", "dense").Config(type="dense"), engine.layout)
    (scored,) = engine.generate([request], dense)
    assert largest_difference([drawn], [scored]) == 0


def test_finish_reasons_and_the_token_that_ends_are_kept(tiny: LanguageModel, rollout: Rollout) -> None:
    (first,), _ = rollout(make_prompts([7]), rollout__max_tokens=30)
    stop = int(first.token_ids[4])
    (stopped,), _ = rollout(make_prompts([7]), rollout__max_tokens=30, rollout__stop_token_ids=[stop])
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids[-1] == stop
    (cut,), _ = rollout(make_prompts([7]), rollout__max_tokens=4)
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 4)


@pytest.mark.parametrize("room", [1, 2])
def test_a_prompt_just_inside_the_context_fills_it_exactly(tiny: LanguageModel, rollout: Rollout, room: int) -> None:
    (trace,), _ = rollout(make_prompts([tiny.context_length - room]), rollout__max_tokens=9)
    if trace.finish_reason != "stop":
        assert (trace.finish_reason, len(trace.token_ids)) == ("context", room)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_prompt_that_fills_the_context_names_both_numbers(tiny: LanguageModel, rollout: Rollout, beyond: int) -> None:
    length = tiny.context_length + beyond
    with pytest.raises(InputError, match=rf"{length} tokens .* context is {tiny.context_length}"):
        rollout(make_prompts([3, length]))


def test_a_pool_too_small_for_one_request_says_what_it_needs(rollout: Rollout) -> None:
    with pytest.raises(OutOfPagesError, match=r"num_pages=5 .* needs 9 pages"):
        rollout(make_prompts([20]), rollout__num_pages=5, rollout__max_tokens=16)


def test_an_empty_prompt_and_a_token_outside_the_vocabulary_are_refused(rollout: Rollout) -> None:
    with pytest.raises(InputError, match="prompt 1 is empty"):
        rollout([(3,), ()])
    with pytest.raises(InputError, match="token id 97; the vocabulary has 97"):
        rollout([(3, 97)])


def test_a_dense_layer_beyond_the_model_is_refused(rollout: Rollout) -> None:
    with pytest.raises(InputError, match=r"layer 9 but random has layers 0 to 3"):
        rollout(make_prompts([3]), attention__dense_layers=[0, 9])


def test_options_default_to_a_pool_that_needs_no_preemption(rollout: Rollout) -> None:
    assert EngineOptions().num_pages is None
    _, stats = rollout(make_prompts([30, 31, 32]), rollout__samples_per_prompt=3, rollout__max_tokens=20)
    assert stats.preemptions == 0


@pytest.mark.parametrize("selector", ["mean_landmark", "gqa_max_softmax", "quest", "window", "oracle", "random"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_every_selector_generates(rollout: Rollout, selector: str, page_size: int) -> None:
    settings = {"attention__selector": selector, "attention__page_size": page_size}
    traces, stats = rollout(make_prompts([70, 90]), rollout__max_tokens=8, **settings, **SPARSE)
    assert all(len(t.token_ids) > 0 for t in traces)
    assert stats.attended_tokens <= stats.dense_tokens
