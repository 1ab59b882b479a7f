"""The configuration of a training run: ``sparrow train CONFIG.yaml key=value ...``."""

from __future__ import annotations

from pydantic import Field, model_validator

from sparrow_core.config import (
    AttentionConfig,
    MismatchConfig,
    ModelConfig,
    PolicyPlugin,
    RolloutConfig,
    Section,
    check_policy,
    plugin_field,
    section_field,
    with_mismatch_settings,
)
from sparrow_core.errors import InputError
from sparrow_trainers.data.config import DataConfig
from sparrow_trainers.distill.config import TrainDistillConfig
from sparrow_trainers.objectives.config import ObjectiveConfig
from sparrow_trainers.rewards.config import RewardsConfig
from sparrow_trainers.run_log import LogConfig
from sparrow_trainers.titan.config import CheckpointSection, MemorySection, OptimizerSection, ParallelSection


class TrainSection(Section):
    steps: int = Field(100, ge=1, description="RL steps: rollout, recompute, update")
    prompts_per_step: int = Field(8, ge=1, description="groups of rollout.samples_per_prompt samples, over all ranks")
    minibatches: int = Field(1, ge=1, description="optimizer steps per pass over a step's samples")
    epochs: int = Field(1, ge=1, description="passes over a step's samples")
    micro_batch_tokens: int = Field(8192, ge=1, description="tokens per forward and backward of a rank")
    recompute_tokens: int = Field(8192, ge=1, description="tokens per forward of the dense recompute")


class EvaluateSection(Section):
    """A periodic evaluation with sampling settings of its own, dense and under the run's sparsity policy."""

    every: int = Field(0, ge=0, description="RL steps between evaluations, the first before step 0; 0 is never")
    data: DataConfig | None = Field(None, description="prompts; null takes the training prompts' source")
    num_prompts: int = Field(32, ge=1, description="the first prompts of the source, in its own order")
    samples_per_prompt: int = Field(1, ge=1)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    greedy: bool = False
    max_tokens: int | None = Field(None, ge=1, description="null takes rollout.max_tokens")
    dense: bool = Field(True, description="evaluate with dense attention")
    sparse: bool = Field(True, description="evaluate under the policy's current schedule")


class TrainConfig(Section):
    """Everything a training run depends on."""

    model: ModelConfig = section_field()
    attention: AttentionConfig = section_field()
    policy: PolicyPlugin = plugin_field("tail_threshold", "how many pages a sequence attends to")
    rollout: RolloutConfig = section_field()
    mismatch: MismatchConfig = section_field()
    data: DataConfig
    rewards: RewardsConfig
    objective: ObjectiveConfig = section_field()
    train: TrainSection = section_field()
    optimizer: OptimizerSection = section_field()
    distill: TrainDistillConfig | None = Field(
        None, description="an adapter of the rollout, trained after each update; null trains none"
    )
    memory: MemorySection = section_field()
    parallel: ParallelSection = section_field()
    checkpoint: CheckpointSection = section_field()
    evaluate: EvaluateSection = section_field()
    log: LogConfig = section_field()
    output: str = Field("runs/train", min_length=1, description="directory of checkpoints, logs and samples")

    @model_validator(mode="after")
    def _parts_fit_together(self) -> TrainConfig:
        policy = with_mismatch_settings(self.policy, self.mismatch)
        check_policy(policy, self.attention.layout)
        if self.model.dtype != "float32":
            raise InputError(
                f"model.dtype={self.model.dtype} would make the optimizer's master weights lose small updates; "
                "leave it at float32 and set memory.compute_dtype"
            )
        if self.rollout.greedy:
            raise InputError("rollout.greedy=true gives every sample of a group the same text; train with false")
        if self.rollout.top_p < 1 or self.rollout.top_k:
            raise InputError(
                "rollout.top_p and rollout.top_k cut the distribution that importance ratios are taken of; "
                "train with top_p=1 and top_k=0 (evaluate has settings of its own)"
            )
        if self.train.minibatches > self.train.prompts_per_step:
            raise InputError(
                f"train.minibatches={self.train.minibatches} is more than train.prompts_per_step="
                f"{self.train.prompts_per_step}; a minibatch holds at least one group"
            )
        self._check_references()
        return self if policy is self.policy else self.model_copy(update={"policy": policy})

    def _check_references(self) -> None:
        """A policy with a ladder compares rollouts with references, so both must be the same kind of acceptance."""
        exact = getattr(self.policy, "acceptance", None) == "exact" and hasattr(self.policy, "ladder")
        if exact and self.distill is not None and self.distill.reference_every:
            raise InputError(
                "policy.acceptance=exact, but within training the tokens without the adapter are looked at over the "
                "top-K alone; set policy.acceptance=lower, or distill.reference_every=0"
            )
