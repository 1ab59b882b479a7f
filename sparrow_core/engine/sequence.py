"""One sample on its way from prompt to trace."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from sparrow_core.engine.sampling import SamplingParams
from sparrow_core.trace import FinishReason, SampleKey


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate.

    Requests with the same ``key.prompt`` must carry the same prompt: they share its pages.
    ``forced_ids`` are taken in place of the first drawn tokens (scoring a given text under a sparse budget).
    """

    key: SampleKey
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    forced_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class TokenRecords:
    """What is kept of each drawn token, in order; tensors in chunks of some tokens ``[X, ...]``."""

    logprobs: list[float] = field(default_factory=list)
    topk_ids: list[torch.Tensor] = field(default_factory=list)
    topk_logprobs: list[torch.Tensor] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    """Pages attended to per KV head in sparse layers while predicting the token."""
    hidden: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class SequenceState:
    """A request, its tokens so far and the pages it holds."""

    request: Request
    order: int
    """Position in submission order: earlier sequences are admitted first and preempted last."""
    max_new_tokens: int
    """min(max_tokens, what is left of the context)."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and generated ids."""
    num_cached: int = 0
    """Leading tokens whose keys and values are in ``pages``."""
    pages: list[int] = field(default_factory=list)
    in_flight: int = 0
    """Decode steps launched for it whose records are still to come (device engine); 0 when it is preempted."""
    slot: int = -1
    """Row of the engine's page table, -1 while not admitted."""
    records: TokenRecords = field(default_factory=TokenRecords)
    finish_reason: FinishReason | None = None

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def in_prefill(self) -> bool:
        return self.num_cached < self.prompt_length

    @property
    def steps_left(self) -> int:
        """Decode steps that may still be launched: the last token is drawn and never cached."""
        return self.prompt_length + self.max_new_tokens - 1 - self.num_cached - self.in_flight

    @property
    def is_replaying(self) -> bool:
        """True while a preempted sequence's known tokens are fed again."""
        return self.num_cached < len(self.tokens) - 1
