from __future__ import annotations

import pytest
import torch

from sparrow_core import registry
from sparrow_core.bench.floors import FloorModel, hardware_for
from sparrow_core.cache import PagedKVCache
from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel, inspect_model

H200 = 4.3e12


def floor_of(preset: str, layout: SparseLayout | None = None) -> FloorModel:
    return FloorModel.of(inspect_model(f"random:{preset}", dtype=torch.bfloat16), layout or SparseLayout(), 1)


@pytest.mark.parametrize(
    ("preset", "milliseconds"), [("qwen3-1.7b", 0.80), ("qwen3-4b", 1.87), ("qwen3-8b", 3.52), ("qwen3-14b", 6.51)]
)
def test_weights_at_the_copy_bandwidth_of_an_h200(preset: str, milliseconds: float) -> None:
    assert floor_of(preset).weight_bytes / H200 * 1e3 == pytest.approx(milliseconds, abs=0.011)


@pytest.mark.parametrize(
    ("preset", "batch", "length", "pages", "dense", "sparse"),
    [
        ("qwen3-1.7b", 32, 16384, 128, 14.8, 3.8),
        ("qwen3-1.7b", 24, 32768, 256, 21.8, 5.3),
        ("qwen3-4b", 16, 32768, 256, 19.9, 5.5),
        ("qwen3-8b", 16, 32768, 256, 21.5, 7.2),
    ],
)
def test_floors_of_whole_steps(preset: str, batch: int, length: int, pages: int, dense: float, sparse: float) -> None:
    floor, lengths = floor_of(preset), [length] * batch
    milliseconds = (floor.step(lengths, budget).total / H200 * 1e3 for budget in (None, [pages] * batch))
    assert [next(milliseconds), next(milliseconds)] == pytest.approx([dense, sparse], rel=0.02)


def test_bytes_of_a_token_a_page_and_a_scan() -> None:
    floor = floor_of("qwen3-1.7b", SparseLayout(dense_layers=()))
    assert floor.step([1], None).kv == 28 * 4096
    one, two = floor.step([1600], [10]), floor.step([1600], [11])
    assert two.kv - one.kv == 28 * 64 * 1024
    assert one.landmarks * 32 == floor.step([1600], None).kv
    assert floor.step([160], [10]).landmarks == 0, "a budget of every page scores nothing"


@pytest.mark.parametrize("dense_layers", [(), (0, 1), (2,)])
def test_the_analytic_cost_model_moves_the_same_bytes(tiny: LanguageModel, dense_layers: tuple[int, ...]) -> None:
    layout = SparseLayout(page_size=4, dense_layers=dense_layers)
    cost_class = registry.load("sparrow.cost_models", "analytic")
    shape = registry.load("sparrow.cost_models", "analytic").Config.model_fields["model"].annotation.__args__[1]
    config = cost_class.Config(model=shape.from_hf_config(tiny.config), kv_bytes=4)
    lengths, pages = [3, 40, 77, 160], [4, 5, 30, 40]
    work = cost_class(config, layout).step_work(torch.tensor(lengths), torch.tensor(pages))
    step = FloorModel.of(tiny, layout, 1).step(lengths, pages)
    assert step.kv == work.dense_layers.bytes + work.sparse_layers.bytes
    assert step.landmarks == work.scoring.bytes


def test_a_cache_of_whole_pages_is_what_a_dense_step_reads(tiny: LanguageModel) -> None:
    layout = SparseLayout(page_size=4)
    per_page = PagedKVCache.bytes_per_page(tiny.shape, 4, 0, tiny.dtype)
    assert FloorModel.of(tiny, layout, 1).step([12, 8], None).kv == 5 * per_page


def test_hardware_by_name_and_by_device() -> None:
    assert hardware_for(None, torch.device("cpu"))[0] == "cpu"
    assert hardware_for("h200", torch.device("cpu"))[1].floor_bandwidth == H200
    with pytest.raises(InputError, match=r"hardware='h2oo' is unknown; use one of a100, h100"):
        hardware_for("h2oo", torch.device("cpu"))
