"""The device engine on CUDA: captured and compiled steps against the host engine, with budgets changing on the device."""

from __future__ import annotations

import pytest
import torch

from sparrow_core.config import load_config
from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.engine import Request, RolloutEngine
from sparrow_core.engine.build import build_engine, build_requests
from sparrow_core.model import LanguageModel, build_random
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.trace import SampleKey, Trace
from tests.engine.conftest import TINY_LLAMA, make_prompts
from tests.engine.test_device_engine import by_key

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

NOISE = 2e-3
"""Largest difference of log-probs that float32 products of other shapes and compiled blocks make here."""


PAGE_SIZE = 8


class Bins(SparsityPolicy):
    def __init__(self, pages: tuple[int, ...] = (6, 4, 9, 5, 14)) -> None:
        super().__init__(PluginConfig(type="bins"), SparseLayout(page_size=PAGE_SIZE))
        self.pages = pages

    def schedule(self) -> BudgetSchedule:
        return BudgetSchedule(pages=self.pages, bin_tokens=40, page_size=PAGE_SIZE)


class PerSequence(Bins):
    """Another budget for every sample and length."""

    def budgets(self, lengths_B: torch.Tensor, keys: list[SampleKey]) -> torch.Tensor | None:  # type: ignore[override]
        samples_B = torch.tensor([k.sample + k.prompt for k in keys])
        return (4 + (lengths_B + 3 * samples_B) % 7).to(torch.int32)


@pytest.fixture(scope="module")
def on_cuda() -> LanguageModel:
    config = {
        **TINY_LLAMA,
        "hidden_size": 128,
        "head_dim": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
    }
    return build_random(config, seed=0, device="cuda")


def engine_of(model: LanguageModel, **settings: object) -> tuple[RolloutEngine, list[Request]]:
    given = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    config = load_config(None, [f"attention.page_size={PAGE_SIZE}", "attention.backend=triton", *given])
    prompts = make_prompts([30, 77, 9, 1])
    return build_engine(model, config.attention, config.rollout), build_requests(model, prompts, config.rollout)


def assert_same(expected: list[Trace], got: list[Trace]) -> None:
    """Equal up to noise; after a draw that noise turns, the rest of that sequence is another one and not compared."""
    compared = total = 0
    for a, b in zip(expected, got, strict=True):
        assert a.key == b.key
        length = min(len(a.token_ids), len(b.token_ids))
        differs = (a.token_ids[:length] != b.token_ids[:length]).nonzero()
        first = int(differs[0]) if len(differs) else length
        assert b.pages[:first].tolist() == a.pages[:first].tolist()
        if first:
            assert (b.logprobs[:first] - a.logprobs[:first]).abs().max() < NOISE
            assert (b.topk_logprobs[:first] - a.topk_logprobs[:first]).abs().max() < NOISE
        compared, total = compared + first, total + len(a.token_ids)
    assert compared >= 0.9 * total


@pytest.mark.parametrize("compiled", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize(
    "case",
    [
        {},
        {"rollout__temperature": 0.8, "rollout__top_p": 0.9, "rollout__top_k": 12},
        {"rollout__samples_per_prompt": 3, "rollout__max_batch": 4},
        {"rollout__max_batch": 2, "rollout__prefill_chunk": 16, "rollout__keep_hidden": True},
    ],
    ids=["sampled", "truncated", "samples", "arrivals"],
)
def test_a_rollout_equals_the_host_engine(on_cuda: LanguageModel, case: dict[str, object], compiled: bool) -> None:
    settings = {"rollout__max_tokens": 120, **case}
    host, requests = engine_of(on_cuda, rollout__engine="host", **settings)
    device, _ = engine_of(on_cuda, rollout__engine="device", rollout__compile=compiled, **settings)
    for policy in (Bins(), PerSequence()):
        assert_same(by_key(host.generate(requests, policy)), by_key(device.generate(requests, policy)))


def test_budgets_change_without_another_capture(on_cuda: LanguageModel) -> None:
    engine, requests = engine_of(on_cuda, rollout__engine="device", rollout__compile=False, rollout__max_tokens=60)
    host, _ = engine_of(on_cuda, rollout__engine="host", rollout__max_tokens=60)
    list(engine.generate(requests, Bins((16, 16, 16))))
    step = engine._device_step
    assert step is not None
    graphs = dict(step._graphs)
    for pages in ((4, 9, 5), (12, 4, 4), (16, 16, 4)):
        got = by_key(engine.generate(requests, Bins(pages)))
        assert_same(by_key(host.generate(requests, Bins(pages))), got)
        assert engine._device_step is step
        assert step._graphs == graphs


def test_a_step_allocates_nothing(on_cuda: LanguageModel) -> None:
    engine, requests = engine_of(on_cuda, rollout__engine="device", rollout__compile=False, rollout__max_tokens=60)
    list(engine.generate(requests, Bins()))
    step = engine._device_step
    assert step is not None
    key = next(iter(step._graphs))
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(8):
        step.run(key)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
