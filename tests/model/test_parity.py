"""Logits equal transformers' for the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_helpers import LLAMA3_ROPE, all_logits, needs_smollm2, random_tokens, small_config, transformers_model

from sparrow_core.model import LanguageModel, load_model

_SHAPES = {
    "group1": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "group2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "group3": {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 24},
    "group4": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 24},
    "group5": {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 10},
    "group8": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32},
}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_logits_equal_transformers(tmp_path: Path, model_type: str, shape: str, tied: bool) -> None:
    reference = transformers_model(small_config(model_type, tie_word_embeddings=tied, **_SHAPES[shape]))
    reference.save_pretrained(tmp_path)
    _assert_equal_logits(load_model(tmp_path), reference)


@pytest.mark.parametrize(
    "rope",
    [
        pytest.param({"rope_parameters": LLAMA3_ROPE}, id="rope_parameters"),
        pytest.param(
            {"rope_parameters": None, "rope_theta": 50000.0, "rope_scaling": {**LLAMA3_ROPE, "rope_theta": None}},
            id="rope_scaling",
        ),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_llama3_rope_equals_transformers_in_either_spelling(
    tmp_path: Path, model_type: str, rope: dict[str, Any]
) -> None:
    import json

    reference = transformers_model(small_config(model_type, rope_parameters=LLAMA3_ROPE))
    plain = transformers_model(small_config(model_type))
    reference.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(small_config(model_type, **rope)))
    model = load_model(tmp_path)
    _assert_equal_logits(model, reference)
    tokens = random_tokens(model, 100)
    with torch.no_grad():
        assert (plain(tokens).logits - reference(tokens).logits).abs().max() > 1e-2  # the rule changes something


def test_older_config_files_without_head_dim_or_rope_parameters(checkpoint: Callable[..., Path]) -> None:
    import json

    directory = checkpoint(rope_parameters={"rope_type": "default", "rope_theta": 777.0})
    config = json.loads((directory / "config.json").read_text())
    for key in ("head_dim", "rope_parameters", "hidden_act", "attention_bias"):
        config.pop(key)
    expected = load_model(directory)
    (directory / "config.json").write_text(json.dumps({**config, "rope_theta": 777.0, "rope_scaling": None}))
    tokens = random_tokens(expected, 60)
    assert torch.equal(all_logits(load_model(directory), tokens), all_logits(expected, tokens))


def test_positions_select_the_rope_rows(checkpoint: Callable[..., Path]) -> None:
    model = load_model(checkpoint())
    tokens = random_tokens(model, 20, batch=3)
    positions = torch.arange(20).repeat(3, 1)
    assert torch.equal(all_logits(model, tokens, positions_BL=positions), all_logits(model, tokens))
    shifted = all_logits(model, tokens, positions_BL=positions + 40)
    torch.testing.assert_close(shifted, all_logits(model, tokens), atol=1e-3, rtol=0)  # RoPE sees distances only
    stretched = all_logits(model, tokens, positions_BL=positions * 5)
    assert (stretched - shifted).abs().max() > 1e-2


@needs_smollm2
def test_smollm2_logits_equal_transformers_over_512_tokens(smollm2: LanguageModel) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(smollm2.directory, dtype=torch.float32).eval()
    tokens = random_tokens(smollm2, 512)
    with torch.no_grad():
        difference = (all_logits(smollm2, tokens) - reference(tokens).logits).abs().max()
    assert difference <= 1e-3


@needs_smollm2
def test_smollm2_answers_a_question(smollm2: LanguageModel) -> None:
    assert smollm2.eos_ids == {2}
    assert smollm2.shape.num_heads == 9
    assert smollm2.shape.num_kv_heads == 3
    assert smollm2.context_length == 8192
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = smollm2.tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    ids = smollm2.tokenizer(text)["input_ids"]
    prompt = len(ids)
    while ids[-1] not in smollm2.eos_ids or len(ids) == prompt:
        ids.append(int(all_logits(smollm2, torch.tensor([ids]))[0, -1].argmax()))
        assert len(ids) < prompt + 20
    assert smollm2.tokenizer.decode(ids[prompt:-1]) == "The capital of France is Paris."


def _assert_equal_logits(model: LanguageModel, reference: Any) -> None:
    tokens = random_tokens(model, 100, batch=2)
    with torch.no_grad():
        expected = reference(tokens).logits
    assert expected.std() > 0.1
    assert (all_logits(model, tokens) - expected).abs().max() <= 1e-4


def test_the_decode_layout_gives_the_same_logits(checkpoint: Callable[..., Path]) -> None:
    directory = checkpoint("qwen3", num_key_value_heads=2)
    plain, fast = load_model(directory), load_model(directory, decode_layout=True)
    tokens = torch.arange(40)[None] % plain.vocab_size
    with torch.no_grad():
        expected, got = (model.logits(model.hidden(tokens)) for model in (plain, fast))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert not fast.module.layers["0"].attention.wo.weight.is_contiguous()
