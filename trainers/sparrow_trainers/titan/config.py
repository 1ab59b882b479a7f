"""Configuration of the ranks, the optimizer and the checkpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from sparrow_core.config import Section
from sparrow_core.errors import InputError


class ParallelSection(Section):
    """Ranks = dp_replicate * dp_shard * tp."""

    dp_replicate: int = Field(1, ge=1, description="copies of the sharded model (HSDP, or DDP with dp_shard=1)")
    dp_shard: int = Field(-1, ge=-1, description="ranks that share one copy's weights (FSDP2); -1 takes what is left")
    tp: int = Field(1, ge=1, description="tensor-parallel ranks; must divide the heads and KV heads")
    reshard_after_forward: Literal["default", "always", "never"] = "default"
    timeout_minutes: float = Field(
        120.0, gt=0, description="longest wait of one rank for another, e.g. for the longest response"
    )

    @model_validator(mode="after")
    def _shards_are_a_number_or_the_rest(self) -> ParallelSection:
        if self.dp_shard == 0:
            raise InputError("parallel.dp_shard=0 is no number of ranks; give 1 or more, or -1 for what is left")
        return self


class OptimizerSection(Section):
    """AdamW with a warm-up, a plateau and a decay."""

    lr: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this global norm")
    warmup_steps: int = Field(0, ge=0, description="optimizer steps of linear warm-up")
    decay_ratio: float = Field(0.0, ge=0, le=1, description="share of all optimizer steps that decays at the end")
    decay_type: Literal["linear", "sqrt", "cosine"] = "linear"
    min_lr_factor: float = Field(0.0, ge=0, le=1)
    implementation: Literal["auto", "fused", "foreach", "for-loop"] = Field(
        "auto", description="auto: fused on CUDA, foreach on a CPU"
    )


class CheckpointSection(Section):
    interval: int = Field(20, ge=1, description="RL steps between checkpoints; the last step is always saved")
    keep: int = Field(3, ge=2, description="latest checkpoints that are kept")
    asynchronous: bool = Field(True, description="write in the background while training goes on")
    export: bool = Field(True, description="write the final weights as a Hugging Face directory, output/model")


class MemorySection(Section):
    activation_checkpoint: Literal["none", "selective", "full"] = "none"
    compute_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of forward and backward, and of the rollout; auto: bfloat16 on CUDA, float32 on a CPU"
    )
    compile: bool = Field(False, description="torch.compile every transformer block of the training forward")
    release_cache: bool = Field(
        False, description="free the rollout's KV pages during recompute and update, and allocate them anew every step"
    )
