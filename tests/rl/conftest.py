"""A tiny Qwen3 with a word tokenizer on disk, prompts, and configurations of runs over them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sparrow_core.config import load_as
from sparrow_core.model import build_random, export_model
from sparrow_trainers.config import TrainConfig

NUM_WORDS = 57
QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": NUM_WORDS + 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny-qwen3")
    vocab = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{i}": i + 3 for i in range(NUM_WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
    fast.save_pretrained(root / "tokenizer")
    model = dataclasses.replace(build_random(QWEN3, 5), directory=root / "tokenizer")
    return export_model(model, root / "model")


@pytest.fixture(scope="session")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    texts = [" ".join(f"w{(7 * i + 3 * k) % NUM_WORDS}" for k in range(10 + 5 * (i % 4))) for i in range(12)]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def settings(model_directory: Path, prompts_file: Path, tmp_path: Path) -> dict[str, Any]:
    """Dotted keys of a small run."""
    return {
        "model.source": model_directory,
        "model.device": "cpu",
        "attention.page_size": 4,
        "attention.dense_layers": "[0]",
        "policy": "{type: static, pages: 6}",
        "rollout.max_tokens": 24,
        "rollout.samples_per_prompt": 4,
        "rollout.max_batch": 16,
        "mismatch.bin_tokens": 16,
        "mismatch.num_bins": 3,
        "data.source": f"{{type: jsonl, path: {prompts_file}}}",
        "rewards.terms": "[{reward: {type: function, path: 'tests.rl.scoring:share_of_low_words'}, name: low}]",
        "rewards.workers": 1,
        "train.steps": 3,
        "train.prompts_per_step": 4,
        "train.micro_batch_tokens": 200,
        "optimizer.lr": 0.003,
        "checkpoint.interval": 1,
        "output": tmp_path / "run",
    }


@pytest.fixture
def make_config(settings: dict[str, Any]) -> Callable[..., TrainConfig]:
    def make(**changes: Any) -> TrainConfig:
        keys = settings | {key.replace("__", "."): value for key, value in changes.items()}
        return load_as(TrainConfig, None, [f"{key}={value}" for key, value in keys.items()])

    return make
