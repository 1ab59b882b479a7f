"""What a run will need, checked and counted before anything is started.

Bytes are of one rank; the KV cache is what the configured batch takes at its longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sparrow_core import registry
from sparrow_core.cache import PagedKVCache
from sparrow_core.engine.build import build_policy
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import DENSE_PAGES
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.data.prompt_set import PromptSet
from sparrow_trainers.distill.adapter import ADAPTER_BYTES, adapter_size

_MASTER_BYTES = 4 + 4 + 8
"""Per parameter: float32 weight, float32 gradient, two float32 Adam moments."""
_CHECKED_PROMPTS = 20_000


@dataclass(frozen=True, slots=True)
class Plan:
    model: str
    num_parameters: int
    num_prompts: int
    longest_prompt: int
    """Tokens of the longest of the first prompts that were encoded."""
    checked_prompts: int
    context_length: int
    samples_per_step: int
    pages: tuple[int, ...]
    """The first schedule."""
    training_bytes: int
    """Master weights, gradients and optimizer moments, sharded as configured."""
    policy_bytes: int
    """The rollout's own copy of the weights; 0 where it shares the trained ones."""
    cache_bytes: int
    logits_bytes: int
    """float32 logits and their gradient of one micro-batch."""
    adapter_bytes: int = 0
    """The rollout's adapter with gradients and optimizer moments; every rank holds it whole."""
    merged_bytes: int = 0
    """Copies of the weights that the adapter changes, merged for the rollout."""

    @property
    def total_bytes(self) -> int:
        policy = self.policy_bytes + self.merged_bytes
        return self.training_bytes + self.adapter_bytes + policy + self.cache_bytes + self.logits_bytes

    def lines(self) -> Iterator[str]:
        yield f"model     {self.model}, {self.num_parameters:,} parameters, context {self.context_length}"
        yield (
            f"data      {self.num_prompts:,} prompts, longest of the first {self.checked_prompts} has "
            f"{self.longest_prompt} tokens; {self.samples_per_step} samples per step"
        )
        pages = ["dense" if each == DENSE_PAGES else str(each) for each in self.pages]
        yield f"budget    {' '.join(pages if len(set(pages)) > 1 else pages[:1])} pages by length bin"
        yield (
            f"memory    {_gib(self.total_bytes)} per rank beside activations: {_gib(self.training_bytes)} weights and "
            f"optimizer, {_gib(self.policy_bytes)} rollout weights, {_gib(self.cache_bytes)} KV pages, "
            f"{_gib(self.logits_bytes)} logits{self._adapter_words()}"
        )

    def _adapter_words(self) -> str:
        if not self.adapter_bytes:
            return ""
        return (
            f", {_gib(self.adapter_bytes)} adapter and its optimizer, {_gib(self.merged_bytes)} merged rollout weights"
        )


def make_plan(
    config: TrainConfig, model: LanguageModel, prompts: PromptSet, *, shards: int, is_shared: bool, dtype: torch.dtype
) -> Plan:
    """Raises InputError when a prompt leaves no room to generate, or attention or policy do not fit the model.

    Args:
        model: may be on the meta device.
        shards: ranks over which weights and optimizer are split.
        is_shared: the rollout runs on the trained weights themselves.
        dtype: of the rollout's weights and cache.
    """
    checked = [prompts[index] for index in range(min(len(prompts), _CHECKED_PROMPTS))]
    longest = max(checked, key=lambda prompt: len(prompt.token_ids))
    if len(longest.token_ids) >= model.context_length:
        raise InputError(
            f"prompt {longest.example.prompt_id} has {len(longest.token_ids)} tokens but {model.name}'s context is "
            f"{model.context_length}; set data.max_prompt_tokens with data.too_long=drop, or shorten it"
        )
    num_parameters = sum(p.numel() for p in {id(p): p for p in model.module.parameters()}.values())
    schedule = build_policy(config.policy, config.attention.layout).schedule()
    size = 2 if dtype == torch.bfloat16 else 4
    added = None if config.distill is None else adapter_size(model, config.distill.adapter)
    return Plan(
        model=model.name,
        num_parameters=num_parameters,
        num_prompts=len(prompts),
        longest_prompt=len(longest.token_ids),
        checked_prompts=len(checked),
        context_length=model.context_length,
        samples_per_step=config.train.prompts_per_step * config.rollout.samples_per_prompt,
        pages=tuple(schedule.pages),
        training_bytes=num_parameters * _MASTER_BYTES // shards,
        policy_bytes=0 if is_shared else num_parameters * size,
        cache_bytes=_cache_bytes(config, model, len(longest.token_ids), dtype),
        logits_bytes=2 * 4 * model.vocab_size * config.train.micro_batch_tokens,
        adapter_bytes=0 if added is None else added.parameters * ADAPTER_BYTES,
        merged_bytes=0 if added is None else added.merged * size,
    )


def _cache_bytes(config: TrainConfig, model: LanguageModel, prompt_tokens: int, dtype: torch.dtype) -> int:
    page_size = config.attention.page_size
    vectors = registry.load("sparrow.selectors", config.attention.selector.type).landmark_vectors
    length = min(prompt_tokens + config.rollout.max_tokens, model.context_length)
    num_pages = config.rollout.num_pages or config.rollout.max_batch * (-(-length // page_size))
    return num_pages * PagedKVCache.bytes_per_page(model.shape, page_size, vectors, dtype)


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
