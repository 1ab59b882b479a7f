"""Settings of distillation: the adapter, its losses and its optimizer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from sparrow_core.config.base import PluginOf, Section, section_field
from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_trainers.distill.adapter import AdapterConfig

DistillLossPlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf("sparrow.distill_losses")]


class WeightedLoss(Section):
    loss: DistillLossPlugin
    weight: float = Field(1.0, gt=0, description="factor on this loss")


class SparsePpoConfig(Section):
    weight: float = Field(1.0, ge=0, description="factor on the student's own policy term; 0 leaves it out")
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)


class AdapterOptimizerConfig(Section):
    lr: float = Field(1e-4, gt=0, description="of the adapter, apart from the dense policy's")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)


_DEFAULT_LOSSES: Any = ({"loss": "forward_kl"},)


class DistillConfig(Section):
    adapter: AdapterConfig = section_field()
    losses: tuple[WeightedLoss, ...] = Field(_DEFAULT_LOSSES, description="distances to the dense policy, summed")
    support: Literal["exact", "topk"] = Field(
        "exact", description="exact sums over the vocabulary; topk over a trace's stored ids with the rest as one"
    )
    sparse_ppo: SparsePpoConfig = section_field()
    optimizer: AdapterOptimizerConfig = section_field()
    initial: str | None = Field(
        None, min_length=1, description="a PEFT directory to begin with; null draws a new adapter"
    )
    updates: int = Field(1, ge=1, description="adapter updates per step, each over all its tokens")
    reference_every: int = Field(
        10,
        ge=0,
        description="steps between measurements of the same tokens without the adapter, from step 0; 0 is never",
    )
    micro_batch_tokens: int = Field(8192, ge=1, description="tokens per forward; a longer sequence goes alone")
    logit_chunk: int = Field(256, ge=1, description="tokens whose full-vocabulary logits are held at once")

    @model_validator(mode="after")
    def _something_is_minimised(self) -> DistillConfig:
        if not self.losses and self.sparse_ppo.weight == 0:
            raise InputError("losses is empty and sparse_ppo.weight is 0, so nothing is trained; give one loss")
        return self


class TrainDistillConfig(DistillConfig):
    """Distillation within RL, on each step's rollouts after the dense update."""

    support: Literal["exact", "topk"] = Field("topk", description="the trace's stored ids, with the rest as one")

    @model_validator(mode="after")
    def _teacher_outlives_the_update(self) -> TrainDistillConfig:
        if self.support == "exact":
            raise InputError(
                "support=exact reads the teacher through the lm_head, which the dense update has moved by then; "
                "set support=topk"
            )
        return self
