"""Which engine a rollout gets, what is refused and why, and compiled steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from sparrow_core import registry
from sparrow_core.config import RolloutConfig, load_config
from sparrow_core.engine import device_step
from sparrow_core.engine.build import build_engine, build_requests
from sparrow_core.engine.device_choice import choose_engine
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel, build_random
from tests.engine.conftest import TINY_LLAMA, make_prompts, overrides
from tests.engine.test_device_engine import GrowsAndShrinks, assert_same, by_key


def chosen(model: LanguageModel, backend: str, selector: str = "mean_landmark", **settings: Any) -> tuple[str, bool]:
    classes = registry.load("sparrow.backends", backend), registry.load("sparrow.selectors", selector)
    return choose_engine(model, RolloutConfig(**settings), *classes)


@pytest.fixture
def on_cuda(tiny: LanguageModel) -> LanguageModel:
    """A model that says it is on CUDA; nothing is run on it."""
    return replace(tiny, device=torch.device("cuda"))


def test_auto_on_a_cpu_is_the_host_engine(tiny: LanguageModel) -> None:
    assert chosen(tiny, "sdpa") == ("host", False)
    assert chosen(tiny, "sdpa", engine="device") == ("device", False)
    assert chosen(tiny, "sdpa", engine="device", compile=True) == ("device", True)


def test_auto_on_cuda_is_the_device_engine_where_it_can_serve(on_cuda: LanguageModel) -> None:
    assert chosen(on_cuda, "triton") == ("device", True)
    assert chosen(on_cuda, "triton", compile=False) == ("device", False)
    assert chosen(on_cuda, "triton", engine="host") == ("host", False)
    assert chosen(on_cuda, "sdpa") == ("host", False)
    assert chosen(on_cuda, "triton", "random") == ("host", False)


@pytest.mark.parametrize(
    ("backend", "selector", "says"),
    [
        (
            "sdpa",
            "mean_landmark",
            "attention.backend=sdpa cannot be captured in a CUDA graph; set attention.backend=tri",
        ),
        ("triton", "random", "attention.selector=random cannot be captured .* set attention.selector=mean_landmark or"),
    ],
)
def test_what_the_device_engine_cannot_serve_says_why(
    on_cuda: LanguageModel, backend: str, selector: str, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        chosen(on_cuda, backend, selector, engine="device")


def test_compile_without_the_device_engine_is_refused(tiny: LanguageModel, on_cuda: LanguageModel) -> None:
    with pytest.raises(InputError, match=r"takes the host engine on a CPU; set rollout.engine=device"):
        chosen(tiny, "sdpa", compile=True)
    with pytest.raises(InputError, match=r"rollout.engine=host was chosen"):
        chosen(tiny, "sdpa", engine="host", compile=True)
    with pytest.raises(InputError, match=r"attention.backend=sdpa cannot be captured"):
        chosen(on_cuda, "sdpa", compile=True)


@pytest.mark.parametrize("setting", ["rollout.engine=gpu", "rollout.steps_ahead=17", "rollout.compile=maybe"])
def test_settings_that_do_not_exist_are_refused(setting: str) -> None:
    with pytest.raises(InputError, match=setting.split("=")[0]):
        load_config(None, [setting])


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_compiled_steps_are_one_graph_for_all_blocks_and_draw_the_same(
    monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    torch.set_num_threads(1)
    torch._dynamo.reset()
    compiler = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(device_step, "COMPILER", compiler)
    architecture = {"qwen3": ["Qwen3ForCausalLM"], "llama": ["LlamaForCausalLM"]}[model_type]
    model = build_random(
        {**TINY_LLAMA, "model_type": model_type, "architectures": architecture, "num_hidden_layers": 10}, seed=0
    )
    prompts = make_prompts([14, 22, 9])
    traces = []
    for settings in ({"rollout__engine": "host"}, {"rollout__engine": "device", "rollout__compile": True}):
        config = load_config(None, overrides({"rollout__max_tokens": 14, "rollout__max_batch": 3, **settings}))
        engine = build_engine(model, config.attention, config.rollout)
        requests = build_requests(model, prompts, config.rollout)
        traces.append(by_key(engine.generate(requests, GrowsAndShrinks())))
    assert_same(*traces)
    assert compiler.frame_count == 2, "the blocks and the draws"
    assert all(block._compiled_call_impl is None for block in model.module.layers.values())
