"""What the plugins of training implement: prompts, rewards, and the parts of an RL objective.

Shapes: S sequences of this rank, T drawn tokens of them laid end to end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch

from sparrow_core.contracts import Plugin, PluginConfig
from sparrow_core.trace import FinishReason

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Sums a float64 tensor over the data-parallel ranks; the identity on one rank. Every rank calls it equally often."""


@dataclass(frozen=True, slots=True)
class PromptExample:
    """One row of a prompt source: text or chat ``messages``, and the fields that its rewards read."""

    prompt_id: str
    """Stable name of the row, for logs."""
    text: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """JSON-like values: the answer, the tests, a task's metadata."""


class PromptSource(Plugin):
    """A finite, indexable and deterministic set of prompts (group ``sparrow.data``)."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> PromptExample: ...


@dataclass(frozen=True, slots=True)
class Completion:
    """What a reward sees of one sample."""

    prompt_id: str
    prompt: str
    """The prompt's text; chat messages rendered."""
    text: str
    """The drawn tokens' text without special tokens."""
    num_tokens: int
    finish_reason: FinishReason
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the prompt's ``PromptExample``."""


class Reward(Plugin):
    """Scores completions one at a time (group ``sparrow.rewards``). Built and run in worker processes."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config

    @abstractmethod
    def score(self, completion: Completion) -> float:
        """The reward, finite. What it raises is counted and logged with the prompt's id, never swallowed."""


@dataclass(frozen=True, eq=False)
class ResponseBatch:
    """The drawn tokens of whole sequences. Constants of an RL step: no field carries a gradient."""

    sequence_T: torch.Tensor
    """int64, ascending: each token's sequence, 0 to S - 1."""
    rollout_logp_T: torch.Tensor
    """float32 log-prob under the sparse rollout, untruncated softmax at the sampling temperature."""
    old_logp_T: torch.Tensor
    """float32 log-prob under the dense policy that the rollout's weights are of."""
    group_S: torch.Tensor
    """int64: samples of one prompt have one number; a group is never split over ranks."""
    reward_S: torch.Tensor
    """float32."""
    truncated_S: torch.Tensor
    """bool: cut by ``max_tokens`` or the context instead of stopping by itself."""
    max_tokens: int
    """``rollout.max_tokens``."""

    @property
    def num_sequences(self) -> int:
        return len(self.reward_S)

    @cached_property
    def lengths_S(self) -> torch.Tensor:
        """int64: drawn tokens of each sequence."""
        return torch.bincount(self.sequence_T, minlength=self.num_sequences)


@dataclass(frozen=True, slots=True, eq=False)
class TokenWeights:
    """What the corrections have made of each token so far."""

    weight_T: torch.Tensor
    """float32 factor on the token's loss; 0 where rejected."""
    kept_T: torch.Tensor
    """bool: False for rejected tokens, whether they stay in the denominator is the denominator's choice."""


class ObjectivePart(Plugin, ABC):
    """Base of all parts of an objective (group ``sparrow.objectives``)."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config


class RewardStage(ObjectivePart):
    """Changes rewards by length or truncation before advantages are computed."""

    @abstractmethod
    def shape(self, batch: ResponseBatch) -> torch.Tensor:
        """float32 ``[S]`` rewards in place of ``batch.reward_S``."""


class Advantage(ObjectivePart):
    @abstractmethod
    def advantages(self, batch: ResponseBatch, reduce: Reduce) -> torch.Tensor:
        """float32 ``[S]``."""


class Correction(ObjectivePart):
    """Reweights or rejects tokens by the mismatch ratio rho = exp(old - rollout)."""

    @abstractmethod
    def apply(self, batch: ResponseBatch, current: TokenWeights, reduce: Reduce) -> TokenWeights:
        """``current`` with this correction on top. Rejected tokens stay rejected."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """Per-token loss of a micro-batch, to be weighted and summed, and per-token statistics for the log."""

    loss_T: torch.Tensor
    """float32 with gradient, before weights and denominator."""
    stats: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Name to ``[T]`` without gradient; averaged over kept tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyTokens:
    """A micro-batch of whole sequences as a policy loss or a penalty sees it."""

    new_logp_T: torch.Tensor
    """float32 with gradient."""
    old_logp_T: torch.Tensor
    rollout_logp_T: torch.Tensor
    advantage_T: torch.Tensor
    sequence_T: torch.Tensor
    """int64, ascending from 0 within the micro-batch."""
    kept_T: torch.Tensor
    reference_logp_T: torch.Tensor | None = None
    """Of a reference policy, where the objective has a KL penalty."""


class PolicyLoss(ObjectivePart):
    @abstractmethod
    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        """The surrogate's loss (to be minimised) per token."""


class Penalty(ObjectivePart):
    """A term added to the policy loss, its coefficient included."""

    needs_reference: ClassVar[bool] = False
    """Reads ``tokens.reference_logp_T``, so the trainer keeps a reference policy."""

    @abstractmethod
    def token_loss(self, tokens: PolicyTokens) -> TokenLoss: ...


@dataclass(frozen=True, slots=True, eq=False)
class SequenceShares:
    """The loss of a minibatch is the sum over its counted tokens of factor * loss, over the sum of all sizes."""

    factor_S: torch.Tensor
    """float64: of each token of the sequence."""
    size_S: torch.Tensor
    """float64: what the sequence adds to the denominator."""


class DenominatorRule(ObjectivePart):
    """What the summed loss is divided by."""

    @abstractmethod
    def shares(self, counted_S: torch.Tensor, max_tokens: int) -> SequenceShares:
        """Shares of sequences with ``counted_S`` (float64) counted tokens; ``max_tokens`` is ``rollout.max_tokens``."""


class DistillLoss(Plugin):
    """How a sparse student is drawn to the dense teacher, per token (group ``sparrow.distill_losses``)."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config

    @abstractmethod
    def token_loss(self, student_logp_TV: torch.Tensor, teacher_logp_TV: torch.Tensor) -> torch.Tensor:
        """float32 ``[T]`` with gradient in the student.

        Both are log-probs over one support: the whole vocabulary, or the stored ids with the rest as one bucket
        (the last column). The teacher carries no gradient.
        """
