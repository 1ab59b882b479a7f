"""A tiny random model, and rollouts of it by config."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sparrow_core.config import load_config
from sparrow_core.engine import EngineStats
from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.model import LanguageModel, build_random
from sparrow_core.trace import Trace

TINY_LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 97,
    "max_position_embeddings": 160,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,
    "eos_token_id": 1,
}


@pytest.fixture(scope="session")
def tiny() -> LanguageModel:
    """Wide initial weights, so that attention is far from uniform and budgets matter."""
    torch.set_num_threads(1)
    return build_random(TINY_LLAMA, seed=0)


def overrides(settings: dict[str, object]) -> list[str]:
    """``rollout__max_tokens=3`` as ``rollout.max_tokens=3``; pages hold 4 tokens unless said otherwise."""
    return ["attention.page_size=4", *(f"{key.replace('__', '.')}={value}" for key, value in settings.items())]


Rollout = Callable[..., tuple[list[Trace], EngineStats]]


@pytest.fixture(scope="session")
def rollout(tiny: LanguageModel) -> Rollout:
    """Traces (in request order) and counters of one rollout; keyword arguments are dotted config keys with ``__``."""

    def run(prompts: list[tuple[int, ...]], **settings: object) -> tuple[list[Trace], EngineStats]:
        config = load_config(None, overrides(settings))
        engine = build_engine(tiny, config.attention, config.rollout)
        policy = build_policy(config.policy, config.attention.layout)
        requests = build_requests(tiny, prompts, config.rollout, step=config.rollout.step)
        traces = list(engine.generate(requests, policy))
        return sorted(traces, key=lambda t: t.key), engine.stats

    return run


def make_prompts(lengths: list[int], seed: int = 0) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(2, 97, (n,), generator=generator).tolist()) for n in lengths]
