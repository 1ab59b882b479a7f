"""The configuration of ``sparrow distill CONFIG.yaml key=value ...``."""

from __future__ import annotations

from typing import Any, Literal

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
from sparrow_trainers.distill.config import DistillConfig, SparsePpoConfig
from sparrow_trainers.run_log import LogConfig
from sparrow_trainers.titan.config import CheckpointSection, ParallelSection

_NO_POLICY_TERM: Any = {"weight": 0}


class SupervisedDistillConfig(DistillConfig):
    """Distillation where nothing is rewarded."""

    sparse_ppo: SparsePpoConfig = Field(_NO_POLICY_TERM)

    @model_validator(mode="after")
    def _nothing_is_rewarded(self) -> SupervisedDistillConfig:
        if self.sparse_ppo.weight > 0:
            raise InputError(
                f"sparse_ppo.weight={self.sparse_ppo.weight} needs rewards, which sparrow distill has none of; "
                "set it to 0, or distill within sparrow train"
            )
        return self


class TracesSection(Section):
    """Recorded rollouts to train on in place of new ones."""

    path: str = Field(min_length=1, description="a directory with traces, or with such directories anywhere below it")
    budgets: Literal["recorded", "policy"] = Field(
        "recorded", description="pages to train under: those that the traces recorded, or the policy's schedule"
    )
    shuffle: bool = Field(True, description="another order every epoch; false keeps the files' order")
    seed: int = Field(0, ge=0, description="of the order")


class DistillTrainSection(Section):
    steps: int = Field(100, ge=1, description="rollout, teacher pass, distill.updates updates of the adapter")
    prompts_per_step: int = Field(
        8, ge=1, description="prompts of rollout.samples_per_prompt samples, or recorded traces, over all ranks"
    )


class DistillEvaluateSection(Section):
    """Held-out samples, always the same prompts and seeds, with the adapter and without it."""

    every: int = Field(0, ge=0, description="steps between evaluations, after the update; 0 is never")
    data: DataConfig | None = Field(None, description="held-out prompts, where training is on prompts")
    traces: str | None = Field(None, min_length=1, description="held-out traces, where training is on traces")
    num_prompts: int = Field(16, ge=1, description="the first prompts or traces, in their own order")


class DistillRunConfig(Section):
    """Everything a distillation run depends on."""

    model: ModelConfig = section_field()
    attention: AttentionConfig = section_field()
    policy: PolicyPlugin = plugin_field("static", "how many pages a sequence attends to")
    rollout: RolloutConfig = section_field()
    mismatch: MismatchConfig = section_field()
    data: DataConfig | None = Field(None, description="prompts to sample; give either data or traces")
    traces: TracesSection | None = Field(None, description="recorded traces to train on")
    distill: SupervisedDistillConfig = section_field()
    train: DistillTrainSection = section_field()
    parallel: ParallelSection = section_field()
    checkpoint: CheckpointSection = section_field()
    evaluate: DistillEvaluateSection = section_field()
    log: LogConfig = section_field()
    output: str = Field("runs/distill", min_length=1, description="directory of checkpoints, log and adapter")

    @model_validator(mode="after")
    def _parts_fit_together(self) -> DistillRunConfig:
        policy = with_mismatch_settings(self.policy, self.mismatch)
        check_policy(policy, self.attention.layout)
        if (self.data is None) == (self.traces is None):
            given = "neither" if self.data is None else "both"
            raise InputError(f"{given} of data and traces were given; give prompts as data, or recorded traces")
        if self.parallel.tp > 1:
            raise InputError(
                f"parallel.tp={self.parallel.tp} but every rank of sparrow distill holds the whole model; set it to 1"
            )
        self._check_evaluation()
        return self if policy is self.policy else self.model_copy(update={"policy": policy})

    def _check_evaluation(self) -> None:
        wanted, other = ("data", "traces") if self.traces is None else ("traces", "data")
        if getattr(self.evaluate, other) is not None:
            raise InputError(f"evaluate.{other} is given but training is on {wanted}; give evaluate.{wanted}")
        if self.evaluate.every and getattr(self.evaluate, wanted) is None:
            raise InputError(
                f"evaluate.every={self.evaluate.every} needs held-out samples; give evaluate.{wanted}, or set "
                "evaluate.every=0"
            )
