"""The policy that is trained: torchtitan's module under its parallelisms, optimizer and schedule.

Shapes: T packed tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from sparrow_core.errors import InputError
from sparrow_core.model import (
    LanguageModel,
    PackedDocuments,
    build,
    titan_compat,  # noqa: F401  (before torchtitan)
)
from sparrow_trainers.titan.config import MemorySection, OptimizerSection
from sparrow_trainers.titan.ranks import Ranks

from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig  # isort: skip
from torchtitan.config import CompileConfig, TrainingConfig  # isort: skip
from torchtitan.distributed import utils as dist_utils  # isort: skip
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # isort: skip
from torchtitan.models.llama3.parallelize import parallelize_llama  # isort: skip
from torchtitan.models.llama3.sharding import set_llama3_sharding_config  # isort: skip
from torchtitan.models.qwen3.parallelize import parallelize_qwen3  # isort: skip
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config  # isort: skip

_PARALLELIZE = {"llama": parallelize_llama, "qwen3": parallelize_qwen3}


def compute_dtype(memory: MemorySection, device: torch.device) -> torch.dtype:
    if memory.compute_dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[memory.compute_dtype]


class Learner:
    """Takes over ``model``'s weights as float32 masters and trains them.

    On one rank that computes in float32 the module stays as it is, and a rollout runs on the trained weights
    themselves. Otherwise torchtitan's parallelize function is applied, and ``policy`` is a full copy of the weights
    on each rank in the compute dtype, filled by ``publish`` with one gather per policy version.
    """

    def __init__(
        self,
        model: LanguageModel,
        ranks: Ranks,
        memory: MemorySection,
        optimizer: OptimizerSection,
        *,
        total_updates: int,
    ) -> None:
        self.ranks = ranks
        self.max_norm = optimizer.max_norm
        self.dtype = compute_dtype(memory, ranks.device)
        self.is_shared = ranks.world == 1 and self.dtype == torch.float32
        _check_heads(model, ranks.dims.tp)
        if self.is_shared:
            self.module = model.module
            self.policy = model
        else:
            self.policy = frozen_copy(model, self.dtype)
            self.module = _sharded_definition(model) if ranks.dims.tp > 1 else model.module
        self.module.requires_grad_(True).train()
        self._apply(model.spec.model_type, memory)
        self.optimizers = _optimizers(self.module, optimizer, ranks.device)
        self.schedulers = _schedulers(self.optimizers, optimizer, total_updates)
        self.publish()

    def _apply(self, model_type: str, memory: MemorySection) -> None:
        ac = {"none": None, "selective": SelectiveAC.Config(), "full": FullAC.Config()}[memory.activation_checkpoint]
        compile_config = CompileConfig(enable=memory.compile, components=["model"])
        if self.is_shared:
            if ac is not None:
                ac.build(dump_folder="").apply(self.module)
            if memory.compile:
                raise InputError(
                    "memory.compile=true would compile the blocks that the rollout runs too; set it with "
                    "memory.compute_dtype=bfloat16 or on more than one rank"
                )
            return
        dtype: Any = str(self.dtype).removeprefix("torch.")
        _PARALLELIZE[model_type](
            self.module,
            parallel_dims=self.ranks.dims,
            training=TrainingConfig(mixed_precision_param=dtype),
            parallelism=self.ranks.parallelism,
            compile_config=compile_config,
            ac_config=ac,
            dump_folder="",
        )

    @torch.no_grad()
    def publish(self) -> None:
        """Bring ``policy`` up to the trained weights. Every rank must call it."""
        if self.is_shared:
            return
        target = dict(self.policy.module.named_parameters())
        for name, weight in named_weights(self.module):
            full = weight.full_tensor() if isinstance(weight, DTensor) else weight
            target[name].copy_(full)

    def logits(self, tokens_1T: torch.Tensor, documents: PackedDocuments) -> torch.Tensor:
        """float32 logits ``[T, V]`` of packed documents, with gradients."""
        rope = next(iter(self.policy.module.layers.values())).attention.rope
        positions_1T = documents.positions().to(tokens_1T.device)
        out = self.module(tokens_1T, rope.rows(positions_1T), documents)
        if isinstance(out, DTensor):
            out = out.full_tensor()
        logits_TV: torch.Tensor = out[0].float()
        return logits_TV

    def step(self) -> float:
        """Clip, update, move the learning rate on and clear the gradients; the gradient norm before clipping.

        Raises FloatingPointError before anything is changed when the norm is not finite.
        """
        norm = float(dist_utils.clip_grad_norm_(self.module.parameters(), self.max_norm, foreach=True).item())
        if norm != norm or norm in (float("inf"), float("-inf")):
            raise FloatingPointError(f"the gradient norm is {norm}; the weights were left as they were")
        self.optimizers.step()
        self.schedulers.step()
        self.optimizers.zero_grad()
        return norm

    @property
    def learning_rate(self) -> float:
        return float(self.schedulers.schedulers[0].get_last_lr()[0])

    def full_weights(self) -> LanguageModel:
        """The trained weights in float32, whole, for export. Every rank must call it."""
        if self.is_shared:
            return self.policy
        whole = frozen_copy(self.policy, torch.float32, device=torch.device("cpu"))
        target = dict(whole.module.named_parameters())
        with torch.no_grad():
            for name, weight in named_weights(self.module):
                full = weight.full_tensor() if isinstance(weight, DTensor) else weight
                target[name].copy_(full)
        return whole


def named_weights(module: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """Parameters under their plain names, whatever wraps the blocks."""
    for name, weight in module.named_parameters():
        yield name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", ""), weight


def _check_heads(model: LanguageModel, tp: int) -> None:
    for name, heads in (("heads", model.shape.num_heads), ("KV heads", model.shape.num_kv_heads)):
        if heads % tp:
            raise InputError(f"parallel.tp={tp} does not divide the {heads} {name} of {model.name}; give a divisor")


def _sharded_definition(model: LanguageModel) -> Any:
    """The same module built again with torchtitan's tensor-parallel layout in its configuration."""
    config = build.titan_config(model.spec)
    if model.spec.model_type == "qwen3":
        set_qwen3_sharding_config(config, enable_sp=False, enable_ep=False)
    else:
        set_llama3_sharding_config(config, enable_sp=False)
    module = build.rebuild(config, model.module, model.device)
    if module.enable_weight_tying:
        parallelize = module.parallelize

        def parallelize_tied(dims: Any) -> None:
            # Distributing the embedding and the lm_head one by one parts them.
            parallelize(dims)
            assert module.tok_embeddings.weight.placements == module.lm_head.weight.placements
            module.tok_embeddings.weight = module.lm_head.weight

        module.parallelize = parallelize_tied
    return module


def frozen_copy(
    model: LanguageModel, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> LanguageModel:
    """A copy of whole weights, in another dtype or on another device where given."""
    dtype = model.dtype if dtype is None else dtype
    device = model.device if device is None else device
    module = build.copy_of(model.module, model.spec, dtype, device)
    return dataclasses.replace(model, module=module, dtype=dtype, device=device)


def _optimizers(module: Any, config: OptimizerSection, device: torch.device) -> Any:
    implementation: Any = config.implementation
    if implementation == "auto":
        implementation = "fused" if device.type == "cuda" else "foreach"
    group = ParamGroupConfig(
        pattern=r".*",
        optimizer_name="AdamW",
        optimizer_kwargs={
            "lr": config.lr,
            "betas": config.betas,
            "eps": config.eps,
            "weight_decay": config.weight_decay,
        },
    )
    settings = OptimizersContainer.Config(param_groups=[group], implementation=implementation)
    return settings.build(model_parts=[module])


def _schedulers(optimizers: Any, config: OptimizerSection, total_updates: int) -> Any:
    settings = LRSchedulersContainer.Config(
        warmup_steps=config.warmup_steps,
        total_steps=total_updates,
        decay_ratio=config.decay_ratio,
        decay_type=config.decay_type,
        min_lr_factor=config.min_lr_factor,
    )
    return settings.build(optimizers=optimizers, training_steps=total_updates)
