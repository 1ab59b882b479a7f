from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparrow_core.model import LanguageModel, build_random

TINY = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
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
    torch.set_num_threads(1)
    return build_random(TINY, seed=0)


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model as ``--model`` takes it."""
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.json"
    path.write_text(json.dumps(TINY))
    return f"random:{path}"
