"""The configuration of a supervised warm start: ``sparrow warm-start CONFIG.yaml key=value ...``."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from sparrow_core.config import Section, section_field
from sparrow_core.errors import InputError
from sparrow_trainers.data.config import DataPlugin
from sparrow_trainers.titan.config import OptimizerSection


class NewModelSection(Section):
    """Shape of a Qwen3 with random weights."""

    layers: int = Field(2, ge=1)
    dim: int = Field(64, ge=1, description="width of the residual stream")
    ffn_dim: int = Field(128, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(2, ge=1, description="must divide heads")
    head_dim: int = Field(32, ge=2, description="even")
    context: int = Field(512, ge=1, description="the most tokens of a sequence")
    rope_theta: float = Field(10000.0, gt=0)
    init_std: float = Field(0.02, gt=0, description="standard deviation of the random weights")
    seed: int = Field(0, ge=0, description="of the random weights")

    def hf_config(self, vocab_size: int, eos_id: int) -> dict[str, Any]:
        """As ``config.json``."""
        return {
            "model_type": "qwen3",
            "vocab_size": vocab_size,
            "hidden_size": self.dim,
            "intermediate_size": self.ffn_dim,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": 1e-6,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": True,
            "eos_token_id": eos_id,
            "hidden_act": "silu",
            "attention_bias": False,
            "initializer_range": self.init_std,
        }


class AnswersSection(Section):
    """Prompts and their right answers, of which one word is one token."""

    source: DataPlugin = Field(description="where prompts and answers come from")
    field: str = Field("answer", min_length=1, description="the field of a prompt that holds its right answer")
    seed: int = Field(0, ge=0, description="of their order")


class WarmStartConfig(Section):
    """Everything the made model depends on."""

    model: NewModelSection = section_field()
    data: AnswersSection
    held_out: AnswersSection = Field(description="prompts that say when to stop; only data.source gives the vocabulary")
    num_held_out: int = Field(64, ge=1, description="the first prompts of held_out.source")
    batch: int = Field(32, ge=1, description="prompts per step")
    max_steps: int = Field(1000, ge=1)
    check_every: int = Field(20, ge=1, description="steps between looks at the held-out prompts")
    target_reward: float = Field(
        0.4, gt=0, le=1, description="stop when the expected leading_words reward at temperature 1 reaches it"
    )
    optimizer: OptimizerSection = Field(OptimizerSection(lr=2e-3, warmup_steps=20))
    output: str = Field("runs/warm_start", min_length=1, description="directory of the made model; must not exist")

    @field_validator("held_out")
    @classmethod
    def _same_field(cls, held_out: AnswersSection) -> AnswersSection:
        if held_out.seed:
            raise InputError("held-out prompts are taken in their source's order; leave held_out.seed out")
        return held_out
