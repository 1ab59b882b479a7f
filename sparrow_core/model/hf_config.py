"""A Hugging Face ``config.json``, read and checked: what the model builder needs of it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparrow_core.cache import AttentionShape
from sparrow_core.errors import CheckpointError

SUPPORTED_MODEL_TYPES = ("llama", "qwen3")
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """The "llama3" rule for stretching RoPE to longer contexts (transformers' ``rope_type: llama3``)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense Llama or Qwen3 decoder. ``qk_norm`` is Qwen3's RMSNorm of queries and keys per head."""

    model_type: str
    dim: int
    ffn_dim: int
    vocab_size: int
    context_length: int
    shape: AttentionShape
    norm_eps: float
    tied_embeddings: bool
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    init_std: float

    @property
    def qk_norm(self) -> bool:
        return self.model_type == "qwen3"


def read_model_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Raises CheckpointError that names the key, its value and what is supported."""
    model_type = config.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise _unsupported("model_type", model_type, f"one of {', '.join(SUPPORTED_MODEL_TYPES)} (dense)")
    _refuse_unsupported(config)
    dim = _positive_int(config, "hidden_size")
    num_heads = _positive_int(config, "num_attention_heads")
    num_kv_heads = _num_kv_heads(config, num_heads)
    head_dim = _head_dim(config, dim, num_heads)
    theta, scaling = _rope(config)
    return ModelSpec(
        model_type=model_type,
        dim=dim,
        ffn_dim=_positive_int(config, "intermediate_size"),
        vocab_size=_positive_int(config, "vocab_size"),
        context_length=_positive_int(config, "max_position_embeddings"),
        shape=AttentionShape(_positive_int(config, "num_hidden_layers"), num_heads, num_kv_heads, head_dim),
        norm_eps=_positive_float(config, "rms_norm_eps", 1e-6),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope_theta=theta,
        rope_scaling=scaling,
        init_std=_positive_float(config, "initializer_range", 0.02),
    )


def _unsupported(key: str, value: object, supported: str) -> CheckpointError:
    return CheckpointError(f"config.json: {key}={value!r} is not supported; supported: {supported}")


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise _unsupported("hidden_act", config["hidden_act"], "'silu'")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise _unsupported(key, config[key], "false")
    for key in ("num_experts", "num_local_experts", "quantization_config"):
        if config.get(key):
            raise _unsupported(key, config[key], "dense models without this key")
    if (layer := _first_sliding_layer(config)) is not None:
        raise _unsupported("sliding_window", config.get("sliding_window"), f"full attention (layer {layer} slides)")


def _first_sliding_layer(config: Mapping[str, Any]) -> int | None:
    layer_types = config.get("layer_types")
    if layer_types is not None:
        other = [i for i, kind in enumerate(layer_types) if kind != "full_attention"]
        return other[0] if other else None
    if not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return None
    first = int(config.get("max_window_layers", 28))
    return first if first < int(config["num_hidden_layers"]) else None


def _num_kv_heads(config: Mapping[str, Any], num_heads: int) -> int:
    if config.get("num_key_value_heads") is None and config["model_type"] == "llama":
        return num_heads
    num_kv_heads = _positive_int(config, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise _unsupported("num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads={num_heads}")
    return num_kv_heads


def _head_dim(config: Mapping[str, Any], dim: int, num_heads: int) -> int:
    if config.get("head_dim") is not None or config["model_type"] == "qwen3":
        head_dim = _positive_int(config, "head_dim")
    elif dim % num_heads:
        raise _unsupported("hidden_size", dim, f"a multiple of num_attention_heads={num_heads}, or give head_dim")
    else:
        head_dim = dim // num_heads
    if head_dim % 2:
        raise _unsupported("head_dim", head_dim, "an even number (RoPE turns pairs)")
    return head_dim


def _rope(config: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """RoPE base and scaling, from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    rope: Mapping[str, Any] = config.get(key) or {}
    nested = [name for name, value in rope.items() if isinstance(value, Mapping)]
    if nested:
        raise _unsupported(key, dict(rope), "one rule for all layers, not one per layer type")
    theta_source = rope if rope.get("rope_theta") is not None else config
    theta = _positive_float(theta_source, "rope_theta", 10000.0)
    for name, source in ((f"{key}.partial_rotary_factor", rope), ("partial_rotary_factor", config)):
        factor = source.get("partial_rotary_factor")
        if factor not in (None, 1, 1.0):
            raise _unsupported(name, factor, "1.0")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in (None, "default"):
        return theta, None
    if kind != "llama3":
        raise _unsupported(f"{key}.rope_type", kind, "'default' or 'llama3'")
    scaling = Llama3Scaling(
        factor=_positive_float(rope, "factor", where=key),
        low_freq_factor=_positive_float(rope, "low_freq_factor", where=key),
        high_freq_factor=_positive_float(rope, "high_freq_factor", where=key),
        original_context=_positive_int(rope, "original_max_position_embeddings", where=key),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise _unsupported(f"{key}.high_freq_factor", scaling.high_freq_factor, "a value above low_freq_factor")
    return theta, scaling


def _positive_int(source: Mapping[str, Any], key: str, *, where: str = "") -> int:
    value = source.get(key)
    name = f"{where}.{key}" if where else key
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        problem = " is missing" if value is None else f"={value!r} is not usable"
        raise CheckpointError(f"config.json: {name}{problem}; it must be a positive whole number")
    return value


def _positive_float(source: Mapping[str, Any], key: str, default: float | None = None, *, where: str = "") -> float:
    value = source.get(key, default)
    name = f"{where}.{key}" if where else key
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        problem = " is missing" if value is None else f"={value!r} is not usable"
        raise CheckpointError(f"config.json: {name}{problem}; it must be a positive number")
    return float(value)
