"""What the analytic cost model knows of machines and of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt

from sparrow_core.errors import InputError
from sparrow_core.hardware import HARDWARE, Hardware

__all__ = ["HARDWARE", "MODELS", "Hardware", "ModelShape"]


class ModelShape(BaseModel):
    """The sizes of a dense decoder that decide what a decode step reads and computes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    num_layers: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    parameters: PositiveInt
    """Weights that take part in one decode step: all but an input embedding that is not tied to the output."""

    @property
    def group_size(self) -> float:
        """r: query heads per KV head."""
        return self.num_heads / self.num_kv_heads

    @property
    def key_width(self) -> int:
        """Elements of one layer's key (and of its value) per token, all KV heads."""
        return self.num_kv_heads * self.head_dim

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """The shape a Hugging Face ``config.json`` describes (Llama and Qwen2/Qwen3 architectures).

        Norms and biases are left out of ``parameters``; they are below 0.1 %.
        Raises InputError when a key is missing or the model is a mixture of experts.
        """
        experts = [key for key in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(key)]
        if experts:
            raise InputError(
                f"config key {experts[0]}={config[experts[0]]}: mixture-of-experts models read a varying share of "
                "their weights; use a measured cost table instead"
            )
        hidden, layers, heads, inner, vocab = (
            _size(config, key)
            for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
        )
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or hidden // heads)
        attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
        return cls(
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            parameters=layers * (attention + 3 * hidden * inner) + vocab * hidden,
        )


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"model config key {key}={value!r} must be a positive integer; give a Hugging Face config")
    return value


def _qwen3(hidden: int, inner: int, layers: int, heads: int) -> ModelShape:
    return ModelShape.from_hf_config(
        {
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
        }
    )


MODELS: dict[str, ModelShape] = {
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40),
}
