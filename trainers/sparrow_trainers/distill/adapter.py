"""The low-rank adapter of the sparse student: weights beside the dense ones, switched on around a forward.

The adapter is a module of its own. The dense model holds no trace of it: same parameters, same names, same state
dict, so the dense policy's forward, gradients, checkpoints and exports are those of a model without one. While the
adapter is active, a forward hook on every target adds ``alpha / rank * B A x`` to what the linear gives.

Shapes: I input width, O output width, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import nn

from sparrow_core.config.base import Section
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of linear: its path below a layer here and in transformers."""

    ours: str
    theirs: str


ADAPTER_BYTES = 4 + 4 + 8
"""Per parameter of an adapter in training: float32 weight, gradient and two Adam moments."""

TARGETS: dict[str, Target] = {
    "q_proj": Target("attention.qkv_linear.wq", "self_attn.q_proj"),
    "k_proj": Target("attention.qkv_linear.wk", "self_attn.k_proj"),
    "v_proj": Target("attention.qkv_linear.wv", "self_attn.v_proj"),
    "o_proj": Target("attention.wo", "self_attn.o_proj"),
    "gate_proj": Target("feed_forward.w1", "mlp.gate_proj"),
    "up_proj": Target("feed_forward.w3", "mlp.up_proj"),
    "down_proj": Target("feed_forward.w2", "mlp.down_proj"),
}


class AdapterConfig(Section):
    rank: int = Field(16, description="rank of each update")
    alpha: float = Field(32.0, gt=0, description="the update is scaled by alpha / rank")
    target_modules: tuple[str, ...] = Field(
        tuple(TARGETS), description="linears with an update, by their Hugging Face names"
    )
    seed: int = Field(0, ge=0, description="of the initial A; B starts at zero")

    @field_validator("rank")
    @classmethod
    def _rank_is_positive(cls, rank: int) -> int:
        if rank < 1:
            raise InputError(f"must be at least 1, not {rank}; leave the adapter out to train without one")
        return rank

    @field_validator("target_modules")
    @classmethod
    def _targets_exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in TARGETS:
                raise InputError(f"names {name!r}, which no layer has; known are {', '.join(TARGETS)}")
        if not names or len(set(names)) != len(names):
            raise InputError(f"must name at least one module, each once; known are {', '.join(TARGETS)}")
        return names

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class AdapterSize:
    """What an adapter adds to a model, in elements."""

    parameters: int
    """Of A and B, over all layers."""
    merged: int
    """Weights of the model that it changes: what a merged copy holds anew."""


def adapter_size(model: LanguageModel, config: AdapterConfig) -> AdapterSize:
    """Nothing is allocated; ``model`` may be on the meta device. Raises InputError when it has fused weights."""
    shapes = [
        target_linear(model, layer, name).weight.shape
        for layer in range(model.shape.num_layers)
        for name in config.target_modules
    ]
    return AdapterSize(sum(config.rank * (o + i) for o, i in shapes), sum(o * i for o, i in shapes))


class LowRankUpdate(nn.Module):
    """``B A`` of one linear, in float32 whatever the model's dtype."""

    def __init__(self, in_features: int, out_features: int, rank: int, device: torch.device) -> None:
        super().__init__()
        self.lora_A = nn.Parameter(torch.empty(rank, in_features, device=device))
        self.lora_B = nn.Parameter(torch.zeros(out_features, rank, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., O]`` of ``[..., I]`` in the input's dtype, unscaled."""
        return F.linear(F.linear(x, self.lora_A.to(x.dtype)), self.lora_B.to(x.dtype))

    def delta(self) -> torch.Tensor:
        """float32 ``[O, I]``, unscaled."""
        return self.lora_B.detach() @ self.lora_A.detach()


class LoraAdapter(nn.Module):
    """One update per target and layer of ``model``. B starts at zero, so a new adapter changes nothing.

    Raises InputError when ``model`` has fused weights.
    """

    def __init__(self, model: LanguageModel, config: AdapterConfig) -> None:
        super().__init__()
        self.config = config
        self.model_type = model.spec.model_type
        self.num_layers = model.shape.num_layers
        self.updates = nn.ModuleDict()
        self._active = False
        for layer in range(self.num_layers):
            for name in config.target_modules:
                weight = target_linear(model, layer, name).weight
                out_features, in_features = weight.shape
                update = LowRankUpdate(in_features, out_features, config.rank, model.device)
                self.updates[_key(layer, name)] = update
        self.reset()

    def reset(self) -> None:
        """Draw A as PEFT does (uniform, Kaiming with a = sqrt 5) from the config's seed, and set B to zero."""
        generator = torch.Generator().manual_seed(self.config.seed)
        with torch.no_grad():
            for update in self._all():
                bound = 1 / math.sqrt(update.lora_A.shape[1])
                drawn_RI = torch.rand(update.lora_A.shape, generator=generator) * (2 * bound) - bound
                update.lora_A.copy_(drawn_RI)
                update.lora_B.zero_()

    def _all(self) -> Iterator[LowRankUpdate]:
        for update in self.updates.values():
            assert isinstance(update, LowRankUpdate)
            yield update

    def items(self) -> Iterator[tuple[int, str, LowRankUpdate]]:
        """Layer, Hugging Face target name and update of each pair."""
        for layer in range(self.num_layers):
            for name in self.config.target_modules:
                update = self.updates[_key(layer, name)]
                assert isinstance(update, LowRankUpdate)
                yield layer, name, update

    def check_fits(self, model: LanguageModel) -> None:
        """Raises InputError when the adapter was made for a model of another kind or shape, or weights are fused."""
        if (model.spec.model_type, model.shape.num_layers) != (self.model_type, self.num_layers):
            raise InputError(
                f"the adapter is of a {self.model_type} model with {self.num_layers} layers but {model.name} is "
                f"{model.spec.model_type} with {model.shape.num_layers}; give the model it was trained on"
            )
        for layer, name, update in self.items():
            expected = tuple(target_linear(model, layer, name).weight.shape)
            given = (update.lora_B.shape[0], update.lora_A.shape[1])
            if given != expected:
                raise InputError(
                    f"the adapter's update of {name} in layer {layer} is {given} but that weight of {model.name} is "
                    f"{expected}; give the model it was trained on"
                )

    @contextmanager
    def active(self, model: LanguageModel) -> Iterator[None]:
        """Add the updates to every forward of ``model`` inside the block; nothing is copied.

        A backward pass that recomputes activations must run inside the block too.
        """
        self.check_fits(model)
        assert not self._active, "the adapter is active already; its update would be added twice"
        scaling = self.config.scaling
        self._active = True
        try:
            with ExitStack() as stack:
                for layer, name, update in self.items():
                    linear = target_linear(model, layer, name)
                    stack.callback(linear.register_forward_hook(_added(update, scaling)).remove)
                yield
        finally:
            self._active = False


def _added(update: LowRankUpdate, scaling: float) -> Any:
    def hook(module: nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = update(args[0])
        return out + scaling * added

    return hook


def target_linear(model: LanguageModel, layer: int, name: str) -> nn.Linear:
    """The linear called ``name`` in ``layer``. Raises InputError when its weights are fused with others."""
    block = model.module.layers[str(layer)]
    if block.attention.qkv_linear.fused_weight is not None:
        raise InputError(
            f"{model.name} has fused q, k and v weights, which an adapter cannot change; "
            "merge the adapter before its weights are laid out for decoding"
        )
    linear = block.get_submodule(TARGETS[name].ours)
    assert isinstance(linear, nn.Linear), f"{TARGETS[name].ours} is a {type(linear).__name__}"
    return linear


def _key(layer: int, name: str) -> str:
    return f"{layer}_{name}"
