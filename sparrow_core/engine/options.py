"""Sizes of the rollout engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineOptions:
    max_batch: int = 8
    """Sequences that decode together."""
    num_pages: int | None = None
    """Pages in the pool; None takes what ``max_batch`` of the longest requests and their prompts need."""
    prefill_chunk: int = 512
    topk_logprobs: int = 20
    keep_hidden: bool = False
    """Keep each token's final hidden state, from which the full sparse distribution can be recomputed."""
    batch_invariant: bool = False
    """Pad every decode step to ``max_batch`` rows of the model's whole context, so that no product of a row changes
    shape with its batch: a sample then replays alone bit for bit. Slow; for tracking a difference down."""
    engine: Literal["host", "device"] = "host"
    """Whether the host launches every decode step and reads its token, or the device runs blocks of steps alone."""
    steps_ahead: int = 16
    """Decode steps per block of the device engine; two blocks are in flight."""
    compile: bool = False
    """``torch.compile`` the model's blocks and the draws in the device engine's steps."""
