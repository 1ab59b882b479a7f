"""Sparse rollouts of small models, with the page sets that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparrow_core.cache import DecodeBatch, LayerCache, PagedKVCache, PageSelection
from sparrow_core.config import load_config
from sparrow_core.contracts import AttentionBackend, PageSelector
from sparrow_core.engine import RolloutEngine
from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.model import LanguageModel
from sparrow_core.trace import Trace
from tests.engine.conftest import make_prompts

SETTINGS = ["attention.page_size=4", "attention.dense_layers=[0]", "policy.type=static", "policy.pages=5"]


class Spy:
    """Wraps a selector and keeps the logical pages chosen for each (layer, query length, KV head)."""

    def __init__(self, selector: PageSelector) -> None:
        self.selector = selector
        self.seen: dict[tuple[int, int, int], list[list[int]]] = {}
        self.landmarks = selector.landmarks

    def select(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> PageSelection:
        pages = self.selector.select(q_BND, cache, batch)
        for row, length in enumerate(batch.lengths_B.tolist()):
            width = -(-length // cache.page_size)
            if int(batch.budgets_B[row]) >= width:
                continue
            logical = {int(p): i for i, p in enumerate(batch.page_table_BW[row, :width])}
            for head, count in enumerate(pages.counts_BK[row].tolist()):
                chosen = [logical[int(p)] for p in pages.pages_BKJ[row, head, :count]]
                self.seen.setdefault((cache.layer, length, head), []).append(chosen)
        return pages


def roll_out(
    model: LanguageModel, lengths: Sequence[int], *overrides: str, max_tokens: int = 60, prompt_seed: int = 0
) -> tuple[list[Trace], Spy, Any]:
    config = load_config(None, [*SETTINGS, f"rollout.max_tokens={max_tokens}", "rollout.keep_hidden=true", *overrides])
    engine = build_engine(model, config.attention, config.rollout)
    spies: list[Spy] = []
    make = engine._make_backend

    def spied(cache: PagedKVCache) -> tuple[AttentionBackend, PageSelector]:
        backend, selector = make(cache)
        spies.append(Spy(selector))
        return backend, spies[-1]  # type: ignore[return-value]

    engine = RolloutEngine(model, spied, engine.layout, engine.options, landmark_vectors=engine._landmark_vectors)
    requests = build_requests(model, make_prompts(list(lengths), seed=prompt_seed), config.rollout)
    policy = build_policy(config.policy, config.attention.layout)
    traces = sorted(engine.generate(requests, policy), key=lambda t: t.key)
    return traces, spies[-1], config
