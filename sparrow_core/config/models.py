"""The configuration of a rollout or a measurement, section by section."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sparrow_core import registry
from sparrow_core.config.base import BackendPlugin, PolicyPlugin, Section, SelectorPlugin, plugin_field, section_field
from sparrow_core.contracts import PluginConfig, SparseLayout
from sparrow_core.errors import InputError


class ModelConfig(Section):
    source: str = Field(
        "smollm2", description="a safetensors directory, GGUF file, hub id, smollm2, or random:qwen3-1.7b"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = Field("auto", description="auto takes CUDA where there is one")

    @field_validator("device")
    @classmethod
    def _device_is_known(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise InputError("must be auto, cpu, cuda or cuda:N")
        return device


class AttentionConfig(Section):
    backend: BackendPlugin = plugin_field("sdpa", "how attention over the paged cache is computed")
    selector: SelectorPlugin = plugin_field("mean_landmark", "which pages a sparse layer attends to")
    page_size: int = Field(16, gt=0, description="tokens per KV page")
    sink_pages: int = Field(1, ge=0, description="first pages that are always attended to")
    recent_pages: int = Field(2, ge=1, description="last pages that are always attended to, the partial one among them")
    dense_layers: tuple[int, ...] = Field((0, 1), description="layers that attend to every page")

    @field_validator("dense_layers")
    @classmethod
    def _layers_are_distinct_indices(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if any(layer < 0 for layer in layers):
            raise InputError("must hold layer numbers from 0 up; negative numbers do not count from the end")
        if len(set(layers)) != len(layers):
            raise InputError("must name each layer once")
        return layers

    @property
    def layout(self) -> SparseLayout:
        return SparseLayout(self.page_size, self.sink_pages, self.recent_pages, self.dense_layers)


class RolloutConfig(Section):
    temperature: float = Field(1.0, gt=0, description="for the most likely token set rollout.greedy=true")
    greedy: bool = Field(False, description="take the most likely token; log-probs stay those at the temperature")
    top_p: float = Field(1.0, gt=0, le=1, description="smallest set of tokens with this probability; 1 is off")
    top_k: int = Field(0, ge=0, description="most likely tokens to draw from; 0 is off")
    max_tokens: int = Field(256, ge=1, description="most new tokens per sample")
    samples_per_prompt: int = Field(1, ge=1)
    seed: int = Field(0, ge=0)
    step: int = Field(0, ge=0, description="part of every sample's seed, with the prompt's and the sample's number")
    stop_token_ids: tuple[int, ...] = Field((), description="stop at these ids too, beside the model's own")
    max_batch: int = Field(8, ge=1, description="sequences that decode together")
    num_pages: int | None = Field(None, ge=1, description="pages in the pool; null takes what max_batch needs")
    prefill_chunk: int = Field(512, ge=1, description="prompt tokens per step")
    topk_logprobs: int = Field(20, ge=1, description="most likely ids and log-probs kept per token")
    keep_hidden: bool = Field(False, description="keep final hidden states, for the exact acceptance")
    batch_invariant: bool = Field(False, description="pad every decode step to max_batch rows")
    engine: Literal["auto", "host", "device"] = Field(
        "auto", description="device decodes without the host between steps; auto takes it on CUDA where it can serve"
    )
    steps_ahead: int = Field(16, ge=1, le=16, description="decode steps per block of the device engine")
    compile: Literal["auto"] | bool = Field(
        "auto", description="torch.compile the model in the device engine's steps; auto takes it on CUDA"
    )


class MismatchConfig(Section):
    bin_tokens: int = Field(2000, ge=1, description="context tokens per length bin")
    num_bins: int = Field(20, ge=1, description="the last bin is open-ended")
    quantile: float = Field(0.05, gt=0, lt=1, description="the tail: this quantile of the acceptance in a bin")
    tau: float = Field(0.86, gt=0, lt=1, description="the acceptance that the tail should keep")
    exact: bool = Field(True, description="compute the acceptance over the whole vocabulary too, from hidden states")
    confidence: float = Field(0.95, gt=0, lt=1, description="of the tail's confidence interval")


class PromptsConfig(Section):
    path: str | None = Field(None, description="a .jsonl file, or a text file of one prompt per line")
    field: str = Field("prompt", min_length=1, description="the text's key in a JSONL row")
    chat: bool = Field(False, description="render text prompts as a user message with the model's template")
    limit: int | None = Field(None, ge=1, description="take the first prompts only")


class RunConfig(Section):
    """Everything a rollout or a measurement depends on."""

    model: ModelConfig = section_field()
    attention: AttentionConfig = section_field()
    policy: PolicyPlugin = plugin_field("dense", "how many pages a sequence attends to")
    rollout: RolloutConfig = section_field()
    mismatch: MismatchConfig = section_field()
    prompts: PromptsConfig = section_field()
    output: str = Field("runs/latest", min_length=1, description="directory of the results")

    @model_validator(mode="after")
    def _policy_fits_the_layout(self) -> Self:
        policy = with_mismatch_settings(self.policy, self.mismatch)
        check_policy(policy, self.attention.layout)
        return self if policy is self.policy else self.model_copy(update={"policy": policy})


def with_mismatch_settings(policy: PluginConfig, mismatch: MismatchConfig) -> PluginConfig:
    """The policy's configuration with ``bin_tokens``, ``num_bins``, ``quantile`` and ``tau`` of the mismatch section
    where it has such fields and they were not given. Raises InputError when it was given other bins or another
    quantile: it observes a stream of the mismatch section's.
    """
    own = [name for name in ("bin_tokens", "num_bins", "quantile", "tau") if name in type(policy).model_fields]
    for name in own:
        mine, stream = getattr(policy, name), getattr(mismatch, name)
        if name in policy.model_fields_set and name != "tau" and mine != stream:
            raise InputError(
                f"policy.{name}={mine} but mismatch.{name}={stream}; set mismatch.{name}, which holds for both"
            )
    missing: dict[str, Any] = {name: getattr(mismatch, name) for name in own if name not in policy.model_fields_set}
    return policy.model_copy(update=missing) if missing else policy


def check_policy(policy: PluginConfig, layout: SparseLayout) -> None:
    """Build the policy and its first schedule once, so that what does not fit the layout is refused early."""
    policy_class: Any = registry.load("sparrow.policies", policy.type)
    policy_class(policy, layout).schedule()
