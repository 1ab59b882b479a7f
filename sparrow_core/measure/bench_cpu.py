"""Our dense engine against ``transformers`` generate on the same prompts, side by side in one run."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from sparrow_core.config import RunConfig
from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.engine.sequence import Request
from sparrow_core.errors import InputError
from sparrow_core.measure.progress import Progress
from sparrow_core.model import LanguageModel


@dataclass(frozen=True, slots=True)
class CpuBenchmark:
    """Median tokens per second of interleaved repeats, and their ratio (ours / transformers)."""

    batch: int
    prompt_tokens: int
    new_tokens: int
    repeats: int
    ours_tokens_per_second: float
    transformers_tokens_per_second: float
    ratio: float
    ratios: list[float]
    equal_tokens: bool


def bench_cpu(
    config: RunConfig, model: LanguageModel, hf_directory: str, *, prompt_tokens: int, repeats: int, progress: Progress
) -> CpuBenchmark:
    """Greedy generation of ``rollout.max_tokens`` tokens for ``rollout.max_batch`` prompts of equal length.

    Equal lengths keep transformers free of padding, which would slow it down. End-of-sequence is off on both sides.
    """
    if repeats < 1:
        raise InputError(f"repeats={repeats} must be at least 1")
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(hf_directory, dtype=model.dtype).to(model.device).eval()
    reference.generation_config.eos_token_id = None
    prompts = _prompts(model, config.rollout.max_batch, prompt_tokens)
    ours_times, theirs_times, equal = [], [], True
    with progress.task("ours against transformers", repeats) as advance:
        for repeat in range(repeats + 1):
            started = time.perf_counter()
            ours = _generate_ours(config, model, prompts)
            middle = time.perf_counter()
            theirs = _generate_theirs(reference, prompts, config.rollout.max_tokens)
            ended = time.perf_counter()
            equal = equal and ours == theirs
            if repeat:  # the first round warms both up
                ours_times.append(middle - started)
                theirs_times.append(ended - middle)
            advance(repeat)
    tokens = config.rollout.max_batch * config.rollout.max_tokens
    ratios = [theirs / ours for ours, theirs in zip(ours_times, theirs_times, strict=True)]
    return CpuBenchmark(
        batch=config.rollout.max_batch,
        prompt_tokens=prompt_tokens,
        new_tokens=config.rollout.max_tokens,
        repeats=repeats,
        ours_tokens_per_second=tokens / statistics.median(ours_times),
        transformers_tokens_per_second=tokens / statistics.median(theirs_times),
        ratio=statistics.median(ratios),
        ratios=ratios,
        equal_tokens=equal,
    )


def _prompts(model: LanguageModel, batch: int, length: int) -> list[tuple[int, ...]]:
    from sparrow_core.measure.sample_prompts import long_text_prompts

    text = long_text_prompts([200_000])[0].text
    ids = model.tokenizer(text)["input_ids"]
    if len(ids) < batch * length:
        raise InputError(f"{batch} prompts of {length} tokens need more text than there is ({len(ids)} tokens)")
    return [tuple(ids[i * length : (i + 1) * length]) for i in range(batch)]


def _generate_ours(config: RunConfig, model: LanguageModel, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    rollout = config.rollout.model_copy(update={"greedy": True})
    engine = build_engine(model, config.attention, rollout)
    policy = build_policy(config.policy, config.attention.layout)
    requests = [_without_stop(r) for r in build_requests(model, prompts, rollout)]
    traces = sorted(engine.generate(requests, policy), key=lambda trace: trace.key.prompt)
    return [trace.token_ids.tolist() for trace in traces]


def _without_stop(request: Request) -> Request:
    return dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, stop_ids=frozenset()))


def _generate_theirs(reference: Any, prompts: list[tuple[int, ...]], new_tokens: int) -> list[list[int]]:
    inputs = torch.tensor(prompts)
    with torch.no_grad():
        output = reference.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=new_tokens, do_sample=False
        )
    return [row[len(prompts[0]) :].tolist() for row in output]
