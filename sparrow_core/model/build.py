"""From a Hugging Face config to a torchtitan model, and between the two state-dict layouts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from sparrow_core.model import titan_compat  # noqa: F401  (before torchtitan)
from sparrow_core.model.attention import SparrowAttention
from sparrow_core.model.hf_config import ModelSpec
from sparrow_core.model.layers import SparrowQKV, SparrowRoPE

from torchtitan.models.common import Embedding, Linear, RMSNorm  # isort: skip
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config  # isort: skip
from torchtitan.models.common.param_init import skip_param_init  # isort: skip
from torchtitan.models.common.rope import CosSinRoPE  # isort: skip
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock  # isort: skip
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter  # isort: skip
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock  # isort: skip
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter  # isort: skip


class LlamaAdapter(Llama3StateDictAdapter):  # type: ignore[misc]
    """The stock adapter without its permutation of query and key weights: our RoPE rotates halves, as theirs does."""

    def _validate_hf_rope_config(self, expected_rope_cls: type) -> None:
        super()._validate_hf_rope_config(CosSinRoPE.Config)

    def _permute(self, w: torch.Tensor, *args: int) -> torch.Tensor:
        return w

    def _reverse_permute(self, w: torch.Tensor, *args: int) -> torch.Tensor:
        return w


_CLASSES: dict[str, tuple[Any, Any, Any]] = {
    "llama": (Llama3Model, Llama3TransformerBlock, LlamaAdapter),
    "qwen3": (Qwen3Model, Qwen3TransformerBlock, Qwen3StateDictAdapter),
}


def titan_config(spec: ModelSpec) -> Any:
    """The torchtitan model config of ``spec``, with our attention, RoPE and QKV projection in every layer."""
    model_class, _, _ = _CLASSES[spec.model_type]
    normal = {"weight": partial(nn.init.normal_, std=spec.init_std)}
    embedding_init = {"weight": skip_param_init} if spec.tied_embeddings else normal
    return model_class.Config(
        dim=spec.dim,
        vocab_size=spec.vocab_size,
        enable_weight_tying=spec.tied_embeddings,
        tok_embeddings=Embedding.Config(
            num_embeddings=spec.vocab_size, embedding_dim=spec.dim, param_init=embedding_init
        ),
        norm=_norm(spec, spec.dim),
        lm_head=Linear.Config(in_features=spec.dim, out_features=spec.vocab_size, param_init=normal),
        layers=[_layer(spec, layer, normal) for layer in range(spec.shape.num_layers)],
    )


def _norm(spec: ModelSpec, size: int) -> Any:
    return RMSNorm.Config(normalized_shape=size, eps=spec.norm_eps, param_init={"weight": nn.init.ones_})


def _layer(spec: ModelSpec, layer: int, linear_init: dict[str, Any]) -> Any:
    _, block_class, _ = _CLASSES[spec.model_type]
    shape = spec.shape
    attention = make_gqa_config(
        dim=spec.dim,
        n_heads=shape.num_heads,
        n_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        wqkv_param_init=linear_init,
        wo_param_init=linear_init,
        inner_attention=SparrowAttention.Config(layer_id=layer),
        rope=_rope(spec),
        qk_norm=_norm(spec, shape.head_dim) if spec.qk_norm else None,
    )
    stock = attention.qkv_linear
    attention.qkv_linear = SparrowQKV.Config(head_dim=stock.head_dim, wq=stock.wq, wkv=stock.wkv)
    return block_class.Config(
        attention=attention,
        attention_norm=_norm(spec, spec.dim),
        ffn_norm=_norm(spec, spec.dim),
        feed_forward=make_ffn_config(
            dim=spec.dim, hidden_dim=spec.ffn_dim, w1_param_init=linear_init, w2w3_param_init=linear_init
        ),
    )


def _rope(spec: ModelSpec) -> Any:
    config = SparrowRoPE.Config(dim=spec.shape.head_dim, max_seq_len=spec.context_length, theta=spec.rope_theta)
    if spec.rope_scaling is not None:
        config.scaling = "llama"
        config.scaling_factor = spec.rope_scaling.factor
        config.low_freq_factor = spec.rope_scaling.low_freq_factor
        config.high_freq_factor = spec.rope_scaling.high_freq_factor
        config.original_max_position_embeddings = spec.rope_scaling.original_context
    return config


def build_on_meta(spec: ModelSpec) -> Any:
    """The model without storage, for ``fill`` or for its names and shapes."""
    with torch.device("meta"):
        return titan_config(spec).build()


def adapter(module: Any) -> Any:
    """The state-dict adapter (``to_hf``, ``from_hf``) of a model built here."""
    for model_class, _, adapter_class in _CLASSES.values():
        if isinstance(module, model_class):
            return adapter_class(module.config, None)
    raise AssertionError(f"{type(module).__name__} was not built by sparrow_core.model")


def fill(module: Any, hf_state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Give a meta-device model its weights (taken over, not copied) and its buffers on ``device``."""
    state = adapter(module).from_hf(dict(hf_state))
    module.load_state_dict(state, strict=True, assign=True)
    _finish(module, device)


def rebuild(config: Any, module: Any, device: torch.device) -> Any:
    """A model of ``config`` (``titan_config`` with a parallel layout, say) that takes over ``module``'s weights."""
    with torch.device("meta"):
        rebuilt = config.build()
    rebuilt.load_state_dict(module.state_dict(), strict=True, assign=True)
    _finish(rebuilt, device)
    return rebuilt


def copy_of(module: Any, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> Any:
    """A frozen copy of ``module``, of the same spec, in another dtype or on another device."""
    copy = build_on_meta(spec)
    state = {
        name: tensor.detach().to(device=device, dtype=dtype, copy=True) for name, tensor in module.state_dict().items()
    }
    copy.load_state_dict(state, strict=True, assign=True)
    _finish(copy, device)
    return copy


def store_column_major(module: Any) -> None:
    """Lay every weight matrix out by column and fuse q, k and v; a tied lm_head gets a copy, as lookups want rows."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(part.weight.detach().t().contiguous().t(), requires_grad=False)
    for layer in module.layers.values():
        layer.attention.qkv_linear.fuse()


def randomize(module: Any, seed: int, dtype: torch.dtype, device: torch.device) -> None:
    """Give a meta-device model random weights: normal with the config's ``initializer_range``, norms at one."""
    module.to(dtype)
    module.to_empty(device=device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        module.init_states(buffer_device=device)
    _finish(module, device)


def _finish(module: Any, device: torch.device) -> None:
    """Tie what is tied, make one rotary table for all layers, and leave the model frozen in eval mode."""
    if module.enable_weight_tying:
        module.tok_embeddings.weight = module.lm_head.weight
    ropes = [layer.attention.rope for layer in module.layers.values()]
    with torch.device(device):
        table = ropes[0]._precompute_cache()
    for rope in ropes:
        rope.cache = table
    module.eval().requires_grad_(False)
