"""One measured rollout: generate sparsely, recompute densely, and sum the drift up by context length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparrow_core import registry
from sparrow_core.closed_loop import observe
from sparrow_core.config import RunConfig, resolved
from sparrow_core.contracts import SparsityPolicy
from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.engine.engine import RolloutEngine
from sparrow_core.engine.sequence import Request
from sparrow_core.engine.stats import EngineStats
from sparrow_core.measure.partial import PartialTraces
from sparrow_core.measure.progress import Progress
from sparrow_core.measure.score import score_traces
from sparrow_core.mismatch import BinStats, MismatchStream, NoiseFloor, noise_floor
from sparrow_core.model import LanguageModel
from sparrow_core.trace import Trace, TraceMeta, TraceSet

_NOISE_SEQUENCES = 4
_NOISE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Measurement:
    """Traces with their dense scores and what they say about the mismatch."""

    config: RunConfig
    traces: TraceSet
    stream: MismatchStream
    noise: NoiseFloor
    stats: EngineStats

    @property
    def bins(self) -> list[BinStats]:
        """The bins that hold tokens."""
        return [b for b in self.stream.bins() if b.tokens]


def measure(
    config: RunConfig,
    model: LanguageModel,
    prompts: Sequence[tuple[int, ...]],
    progress: Progress,
    *,
    noise: NoiseFloor | None = None,
    partial: PartialTraces | None = None,
) -> Measurement:
    """Roll out ``prompts`` (token ids) under ``config``, score the traces densely and measure the noise floor.

    Args:
        noise: the noise floor of this model and backend when it is known already.
        partial: where finished traces are kept until the caller has saved the result.
    """
    rollout = config.rollout.model_copy(update={"keep_hidden": config.rollout.keep_hidden or config.mismatch.exact})
    engine = build_engine(model, config.attention, rollout)
    policy = build_policy(config.policy, config.attention.layout)
    requests = build_requests(model, prompts, rollout, step=rollout.step)
    traces = rollout_traces(engine, requests, policy, progress, partial)
    stats = engine.stats
    with progress.task("dense recompute", len(traces)) as advance:
        traces = score_traces(model, traces, on_trace=advance)
    trace_set = TraceSet(traces, trace_meta(config, model))
    stream = trace_set.mismatch(
        bin_tokens=config.mismatch.bin_tokens, num_bins=config.mismatch.num_bins, quantile=config.mismatch.quantile
    )
    observe(policy, stream, name=config.policy.type, where="the end of the rollout")
    if noise is None:
        noise = measure_noise_floor(config, model, traces, progress)
    return Measurement(config, trace_set, stream, noise, stats)


def rollout_traces(
    engine: RolloutEngine,
    requests: list[Request],
    policy: SparsityPolicy,
    progress: Progress,
    partial: PartialTraces | None = None,
) -> list[Trace]:
    """Finished traces in the order of ``requests``; those that ``partial`` holds already are not generated again."""
    order = {request.key: index for index, request in enumerate(requests)}
    traces = [] if partial is None else partial.load()
    done = {trace.key for trace in traces}
    rest = [request for request in requests if request.key not in done]
    try:
        with progress.rollout("rollout") as on_step:
            for trace in engine.generate(rest, policy, on_step=on_step):
                traces.append(trace)
                if partial is not None:
                    partial.save_now_and_then(traces)
    finally:
        if partial is not None:
            partial.save(traces)
    return sorted(traces, key=lambda trace: order[trace.key])


def measure_noise_floor(
    config: RunConfig, model: LanguageModel, traces: Sequence[Trace], progress: Progress
) -> NoiseFloor:
    """Dense rollout against dense recompute on the start of a few of the traces: what kernels alone account for."""
    rollout = config.rollout.model_copy(update={"keep_hidden": True})
    engine = build_engine(model, config.attention, rollout)
    dense = build_policy(registry.load("sparrow.policies", "dense").Config(type="dense"), config.attention.layout)
    requests = []
    for trace in traces[:_NOISE_SEQUENCES]:
        forced = tuple(trace.token_ids[:_NOISE_TOKENS].tolist())
        base = build_requests(model, [tuple(trace.prompt_ids.tolist())], rollout)[0]
        sampling = dataclasses.replace(base.sampling, max_tokens=len(forced))
        requests.append(Request(trace.key, base.prompt_ids, sampling, forced))
    dense_traces = score_traces(model, rollout_traces(engine, requests, dense, progress.named("noise floor")))
    return noise_floor(dense_traces)


def trace_meta(config: RunConfig, model: LanguageModel) -> TraceMeta:
    return TraceMeta(
        model=model.name,
        backend=config.attention.backend.type,
        selector=config.attention.selector.type,
        policy=config.policy.type,
        page_size=config.attention.page_size,
        sink_pages=config.attention.sink_pages,
        recent_pages=config.attention.recent_pages,
        dense_layers=tuple(config.attention.dense_layers),
        config=resolved(config),
    )


def measurement_json(result: Measurement) -> dict[str, Any]:
    """What ``sparrow measure --json`` writes. Tokens are per KV head of a sparse layer."""
    config = result.config
    traces = result.traces.traces
    attended = sum(int(t.attended(config.attention.page_size).sum()) for t in traces)
    dense = sum(int(t.lengths.sum()) for t in traces)
    return {
        "model": result.traces.meta.model,
        "backend": config.attention.backend.type,
        "selector": config.attention.selector.type,
        "policy": config.policy.type,
        "page_size": config.attention.page_size,
        "tau": config.mismatch.tau,
        "quantile": config.mismatch.quantile,
        "bins": [dataclasses.asdict(b) for b in result.bins],
        "noise_floor": dataclasses.asdict(result.noise),
        "attended_tokens": attended,
        "dense_tokens": dense,
        "kept_fraction": attended / dense if dense else 1.0,
        "sequences": len(traces),
        "generated_tokens": sum(len(t.token_ids) for t in traces),
        "clipped_share": clipped_share(traces),
        "preemptions": result.stats.preemptions,
        "seed": config.rollout.seed,
        "config": resolved(config),
    }


def clipped_share(traces: Sequence[Trace]) -> float:
    """Share of traces cut by max_tokens or the context instead of ending by themselves."""
    return sum(t.finish_reason != "stop" for t in traces) / max(len(traces), 1)
