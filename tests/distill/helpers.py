"""Small random models with an adapter that does something."""

from __future__ import annotations

from typing import Any

import torch

from sparrow_core.model import LanguageModel, build_random
from sparrow_trainers.distill.adapter import AdapterConfig, LoraAdapter

BASE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "initializer_range": 0.3,
    "eos_token_id": 1,
}


def small_model(model_type: str = "llama", seed: int = 0, **changes: Any) -> LanguageModel:
    torch.set_num_threads(1)
    return build_random({"model_type": model_type, **BASE, **changes}, seed=seed)


def trained_adapter(model: LanguageModel, size: float = 0.05, **config: Any) -> LoraAdapter:
    """An adapter whose B is not zero."""
    adapter = LoraAdapter(model, AdapterConfig(**{"rank": 3, "alpha": 6.0, **config}))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, _, update in adapter.items():
            update.lora_B.copy_(torch.randn(update.lora_B.shape, generator=generator) * size)
    return adapter


def tokens_of(model: LanguageModel, length: int = 40, batch: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randint(2, model.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits_of(model: LanguageModel, tokens_BL: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model.hidden(tokens_BL))
