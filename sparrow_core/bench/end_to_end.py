"""A real rollout of forced length, against the time that its steps add up to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from sparrow_core import registry
from sparrow_core.bench.decode import free_memory
from sparrow_core.bench.rollout import KINDS, RolloutCase, RolloutRow
from sparrow_core.bench.steps import DENSE, SPARSE
from sparrow_core.config import AttentionConfig, RolloutConfig
from sparrow_core.contracts import SparsityPolicy
from sparrow_core.engine import EngineStats, Request, RolloutEngine
from sparrow_core.engine.build import build_engine, build_policy
from sparrow_core.engine.sampling import SamplingParams
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.trace import SampleKey

WARM_UP_STEPS = 8


@dataclass(frozen=True, slots=True)
class EndToEndRow:
    """``generate`` of a full batch from its prompts to L tokens, dense and sparse."""

    case: RolloutCase
    prompt_tokens: int
    tokens: int
    """Generated tokens."""
    seconds: dict[str, float]
    """Wall time of the whole call, prefill and host work among it."""
    prefill_seconds: dict[str, float]
    integrated_seconds: dict[str, float]
    """What the step times of the trajectory add up to."""

    def as_json(self) -> dict[str, Any]:
        derived = {
            "kind": "end_to_end",
            "tokens_per_second": {name: self.tokens / self.seconds[name] for name in KINDS},
            "over_integrated": {name: self.seconds[name] / self.integrated_seconds[name] for name in KINDS},
            "speedup": self.seconds[DENSE] / self.seconds[SPARSE],
        }
        return {**asdict(self), **derived}


class _WarmEnoughError(Exception):
    """Ends a warm-up rollout."""


def end_to_end(
    steps: RolloutRow,
    model: LanguageModel,
    attention: AttentionConfig,
    rollout: RolloutConfig,
    *,
    prompt_tokens: int,
) -> EndToEndRow:
    """Generate ``case.batch`` samples of random prompts to ``case.length`` tokens, with no stop ids.

    Args:
        steps: the trajectory of the same case, begun at ``prompt_tokens``.

    Raises InputError when the prompt leaves nothing to generate.
    """
    case = steps.case
    if not 1 <= prompt_tokens < case.length:
        raise InputError(f"prompt_tokens={prompt_tokens} must be between 1 and length - 1 = {case.length - 1}")
    requests = random_requests(model, case, prompt_tokens, rollout)
    policies = {DENSE: _dense(attention), SPARSE: case.policy(attention.layout)}
    seconds, prefill = {}, {}
    for name, policy in policies.items():
        engine = build_engine(model, attention, rollout.model_copy(update={"max_batch": case.batch}))
        warm_up(engine, requests, policy)
        seconds[name], stats = generate(engine, requests, policy)
        prefill[name] = stats.prefill_seconds
        engine.release()
        del engine
        free_memory(model.device)
    tokens = sum(r.sampling.max_tokens for r in requests)
    return EndToEndRow(case, prompt_tokens, tokens, seconds, prefill, steps.seconds)


def random_requests(
    model: LanguageModel, case: RolloutCase, prompt_tokens: int, rollout: RolloutConfig
) -> list[Request]:
    """One request per row, each of its own prompt, that end at ``case.length`` tokens and nowhere before."""
    generator = torch.Generator().manual_seed(rollout.seed)
    shape = (case.batch, prompt_tokens)
    prompts: list[list[int]] = torch.randint(0, model.vocab_size, shape, generator=generator).tolist()
    sampling = SamplingParams(
        temperature=rollout.temperature,
        greedy=rollout.greedy,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_tokens=case.length - prompt_tokens,
        stop_ids=frozenset(),
    )
    return [
        Request(SampleKey(seed=rollout.seed, step=0, prompt=index, sample=0), tuple(ids), sampling)
        for index, ids in enumerate(prompts)
    ]


def warm_up(engine: RolloutEngine, requests: Sequence[Request], policy: SparsityPolicy) -> None:
    """The first steps of the same rollout: kernels compile and the cache is allocated before the clock starts."""

    def stop(stats: EngineStats) -> None:
        if stats.decode_steps >= WARM_UP_STEPS:
            raise _WarmEnoughError

    with contextlib.suppress(_WarmEnoughError):
        list(engine.generate(requests, policy, on_step=stop))


def generate(engine: RolloutEngine, requests: Sequence[Request], policy: SparsityPolicy) -> tuple[float, EngineStats]:
    """Wall seconds of the whole call, and its counters."""
    _synchronize(engine.model.device)
    started = time.perf_counter()
    traces = list(engine.generate(requests, policy))
    _synchronize(engine.model.device)
    seconds = time.perf_counter() - started
    limits = {r.key: r.sampling.max_tokens for r in requests}
    short = [t for t in traces if len(t.token_ids) != limits[t.key]]
    assert not short, f"{short[0].key} has {len(short[0].token_ids)} tokens, not {limits[short[0].key]}"
    return seconds, replace(engine.stats)


def _dense(attention: AttentionConfig) -> SparsityPolicy:
    config = registry.load("sparrow.policies", "dense").Config(type="dense")
    return build_policy(config, attention.layout)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
