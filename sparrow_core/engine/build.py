"""From configuration to engine, policy and requests."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow_core import registry
from sparrow_core.cache import PagedKVCache
from sparrow_core.config import AttentionConfig, RolloutConfig
from sparrow_core.contracts import AttentionBackend, PageSelector, PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.engine.device_choice import choose_engine
from sparrow_core.engine.engine import RolloutEngine
from sparrow_core.engine.options import EngineOptions
from sparrow_core.engine.sampling import SamplingParams
from sparrow_core.engine.sequence import Request
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.trace import SampleKey


def build_engine(model: LanguageModel, attention: AttentionConfig, rollout: RolloutConfig) -> RolloutEngine:
    """Raises InputError when the backend cannot serve this model; the message lists its reasons."""
    layout = attention.layout
    backend_class = registry.load("sparrow.backends", attention.backend.type)
    selector_class = registry.load("sparrow.selectors", attention.selector.type)
    too_deep = [layer for layer in layout.dense_layers if layer >= model.shape.num_layers]
    if too_deep:
        raise InputError(
            f"attention.dense_layers names layer {too_deep[0]} but {model.name} has "
            f"layers 0 to {model.shape.num_layers - 1}"
        )
    reasons = backend_class.unsupported(model.shape, layout, selector_class, model.dtype, model.device)
    if reasons:
        raise InputError(f"attention.backend={attention.backend.type} cannot serve {model.name}: " + "; ".join(reasons))

    engine, compiled = choose_engine(model, rollout, backend_class, selector_class)

    def make_backend(cache: PagedKVCache) -> tuple[AttentionBackend, PageSelector]:
        selector = selector_class(attention.selector, layout)
        return backend_class(attention.backend, cache, layout, selector), selector

    options = EngineOptions(
        max_batch=rollout.max_batch,
        num_pages=rollout.num_pages,
        prefill_chunk=rollout.prefill_chunk,
        topk_logprobs=rollout.topk_logprobs,
        keep_hidden=rollout.keep_hidden,
        batch_invariant=rollout.batch_invariant,
        engine=engine,
        steps_ahead=rollout.steps_ahead,
        compile=compiled,
    )
    return RolloutEngine(model, make_backend, layout, options, landmark_vectors=selector_class.landmark_vectors)


def build_policy(config: PluginConfig, layout: SparseLayout) -> SparsityPolicy:
    policy_class = registry.load("sparrow.policies", config.type)
    return policy_class(config, layout)


def build_requests(
    model: LanguageModel, prompts: Sequence[tuple[int, ...]], rollout: RolloutConfig, *, step: int = 0
) -> list[Request]:
    """``samples_per_prompt`` requests for each prompt's token ids, keyed by (seed, step, prompt, sample)."""
    sampling = SamplingParams(
        temperature=rollout.temperature,
        greedy=rollout.greedy,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_tokens=rollout.max_tokens,
        stop_ids=model.eos_ids | frozenset(rollout.stop_token_ids),
    )
    return [
        Request(SampleKey(seed=rollout.seed, step=step, prompt=index, sample=sample), ids, sampling)
        for index, ids in enumerate(prompts)
        for sample in range(rollout.samples_per_prompt)
    ]
