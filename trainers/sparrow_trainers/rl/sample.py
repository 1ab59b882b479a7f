"""What is kept of one sample once its rollout has been scored: what an update needs, without top-K records.

Shapes: P prompt tokens, T drawn tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow_core.trace import FinishReason, SampleKey
from sparrow_core.train_contracts import ResponseBatch


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One scored and rewarded sample. Tensors live on the host; it travels between ranks."""

    key: SampleKey
    """``key.prompt`` is the group's number within the step."""
    prompt_id: str
    prompt_ids: torch.Tensor
    """int32 ``[P]``."""
    token_ids: torch.Tensor
    """int32 ``[T]``."""
    rollout_logp_T: torch.Tensor
    """float32: under the sparse rollout."""
    old_logp_T: torch.Tensor
    """float32: under the dense policy whose weights the rollout ran with."""
    reference_logp_T: torch.Tensor | None
    finish_reason: FinishReason
    reward: float
    reward_error: str | None
    reward_parts: dict[str, float]

    @property
    def num_tokens(self) -> int:
        """Tokens of the training forward: the last drawn token predicts nothing."""
        return len(self.prompt_ids) + len(self.token_ids) - 1


def response_batch(samples: Sequence[Sample], max_tokens: int) -> ResponseBatch:
    """The samples laid end to end, in the order given."""
    lengths = [len(sample.token_ids) for sample in samples]
    return ResponseBatch(
        sequence_T=torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(lengths)),
        rollout_logp_T=torch.cat([sample.rollout_logp_T for sample in samples]),
        old_logp_T=torch.cat([sample.old_logp_T for sample in samples]),
        group_S=torch.tensor([sample.key.prompt for sample in samples]),
        reward_S=torch.tensor([sample.reward for sample in samples], dtype=torch.float32),
        truncated_S=torch.tensor([sample.finish_reason != "stop" for sample in samples]),
        max_tokens=max_tokens,
    )
