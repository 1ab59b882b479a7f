"""What a rollout did: counters the engine keeps and the progress display reads."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineStats:
    """Counters of one ``generate`` call. Attended and dense tokens are per KV head of a sparse layer."""

    num_sequences: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    """Prompt tokens that went through a prefill; shared prompts count once."""
    generated_tokens: int = 0
    max_generated_tokens: int = 0
    """Sum of the sequences' limits: an upper bound for progress."""
    attended_tokens: int = 0
    dense_tokens: int = 0
    decode_steps: int = 0
    replayed_tokens: int = 0
    preemptions: int = 0
    peak_pages: int = 0
    started: float = field(default_factory=time.perf_counter)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def kept_fraction(self) -> float:
        """Attended over dense tokens; 1 before the first decode step."""
        return self.attended_tokens / self.dense_tokens if self.dense_tokens else 1.0

    @property
    def tokens_per_second(self) -> float:
        return self.generated_tokens / max(time.perf_counter() - self.started, 1e-9)


def attended_tokens(length: int, pages: int, page_size: int) -> int:
    """Tokens a KV head attends to in a context of ``length`` under a budget of ``pages``.

    Every selected page is full but the last one, which holds what is left of the sequence.
    """
    num_pages = -(-length // page_size)
    if pages >= num_pages:
        return length
    return length - (num_pages - pages) * page_size
