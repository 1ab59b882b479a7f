"""Export writes what transformers and we read back, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from model_helpers import all_logits, needs_smollm2, random_tokens, small_config

from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel, build_random, export_model, load_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_export_then_import_is_bit_exact(tmp_path: Path, model_type: str, tied: bool, dtype: torch.dtype) -> None:
    model = build_random(small_config(model_type, tie_word_embeddings=tied), seed=5, dtype=dtype)
    again = load_model(export_model(model, tmp_path / "out"), dtype=dtype)
    _assert_same_weights(model, again)
    tokens = random_tokens(model, 40)
    assert torch.equal(all_logits(model, tokens), all_logits(again, tokens))
    assert (again.module.tok_embeddings.weight is again.module.lm_head.weight) == tied


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_transformers_loads_an_export_with_equal_logits(tmp_path: Path, model_type: str) -> None:
    from transformers import AutoModelForCausalLM

    model = build_random(small_config(model_type), seed=6)
    export_model(model, tmp_path / "out", max_shard_size="40KB")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokens = random_tokens(model, 50)
    with torch.no_grad():
        assert (all_logits(model, tokens) - reference(tokens).logits).abs().max() <= 1e-4
    _assert_same_weights(model, load_model(tmp_path / "out"))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    first, again, other = (build_random(small_config(), seed=seed) for seed in (7, 7, 8))
    _assert_same_weights(first, again)
    assert not torch.equal(first.module.lm_head.weight, other.module.lm_head.weight)


def test_export_refuses_a_directory_with_files_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    model = build_random(small_config(), seed=0)
    (tmp_path / "kept.txt").write_text("kept")
    with pytest.raises(InputError, match="exists and is not empty"):
        export_model(model, tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        export_model(model, tmp_path / "kept.txt" / "below")
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


def test_sharded_checkpoints_of_transformers_are_read(checkpoint: Callable[..., Path]) -> None:
    whole, sharded = checkpoint(name="whole"), checkpoint(name="sharded", shard="40KB")
    assert (sharded / "model.safetensors.index.json").is_file()
    _assert_same_weights(load_model(whole), load_model(sharded))


@needs_smollm2
def test_smollm2_exports_with_its_tokenizer(smollm2: LanguageModel, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    directory = export_model(smollm2, tmp_path / "out")
    again = load_model(directory)
    _assert_same_weights(smollm2, again)
    assert again.eos_ids == smollm2.eos_ids
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.chat_template == smollm2.tokenizer.chat_template
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == 2


def _assert_same_weights(first: LanguageModel, second: LanguageModel) -> None:
    ours, theirs = first.module.state_dict(), second.module.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
