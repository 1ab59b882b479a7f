"""An RL objective out of its parts: prepare a batch once, then losses of micro-batches that add up exactly.

Shapes: S sequences of this rank's batch, T drawn tokens of those in a micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from sparrow_core import registry
from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import (
    Advantage,
    Correction,
    DenominatorRule,
    ObjectivePart,
    Penalty,
    PolicyLoss,
    PolicyTokens,
    Reduce,
    ResponseBatch,
    RewardStage,
    TokenLoss,
)
from sparrow_trainers.objectives.batch_metrics import PREFIX
from sparrow_trainers.objectives.config import GROUP, ObjectiveConfig
from sparrow_trainers.objectives.metrics import MetricSums
from sparrow_trainers.objectives.prepare import Prepared, prepare
from sparrow_trainers.objectives.ratios import bounded_exp, require_finite, sum_by_sequence

__all__ = ["Denominator", "LossOut", "MetricSums", "Objective", "Prepared", "build_objective"]

Part = TypeVar("Part", bound=ObjectivePart)


@dataclass(frozen=True, slots=True)
class Denominator:
    """Of one minibatch, over all ranks and micro-batches."""

    size: float


@dataclass(frozen=True, slots=True, eq=False)
class LossOut:
    loss: torch.Tensor
    """float64 scalar with gradient: these tokens' part of the minibatch's loss. Parts are added, never averaged."""
    sums: MetricSums


@dataclass(frozen=True, slots=True)
class Objective:
    """Stateless. Parts of one list apply in their order."""

    reward_stages: tuple[RewardStage, ...]
    advantage: Advantage
    corrections: tuple[tuple[str, Correction], ...]
    """With the labels of their metrics."""
    policy_loss: PolicyLoss
    penalties: tuple[tuple[str, Penalty], ...]
    denominator_rule: DenominatorRule
    counts_rejected: bool

    @property
    def needs_reference(self) -> bool:
        """Whether a penalty reads log-probs of a reference policy."""
        return any(penalty.needs_reference for _, penalty in self.penalties)

    def prepare(self, batch: ResponseBatch, reduce: Reduce) -> Prepared:
        """Rewards, advantages and weights of this rank's whole batch; every rank calls it once per step.

        Raises InputError with the position when a log-prob or a reward is not finite.
        """
        return prepare(
            batch,
            self.reward_stages,
            self.advantage,
            self.corrections,
            counts_rejected=self.counts_rejected,
            reduce=reduce,
        )

    def denominator(self, prepared: Prepared, sequences: torch.Tensor, reduce: Reduce) -> Denominator:
        """Of the minibatch whose sequences on this rank are ``sequences`` (int64 indices into the batch)."""
        _, size_S = self._shares(prepared)
        return Denominator(float(reduce(size_S[sequences.to(size_S.device)].sum().reshape(1))[0]))

    def loss(
        self,
        prepared: Prepared,
        sequences: torch.Tensor,
        new_logp_T: torch.Tensor,
        denominator: Denominator,
        *,
        entropy_T: torch.Tensor | None = None,
        reference_logp_T: torch.Tensor | None = None,
    ) -> LossOut:
        """This micro-batch's part of the minibatch's loss.

        Args:
            sequences: int64 indices into the batch, in any order; may be empty.
            new_logp_T: float32 log-probs with gradient of the drawn tokens of those sequences, in that order.
            entropy_T: entropies of the same tokens, for the log.
            reference_logp_T: of the reference policy; needed where ``needs_reference``.

        Raises InputError when a shape does not fit, a log-prob is not finite (with its position), or the reference
        is missing.
        """
        chosen = _Chosen.of(prepared, sequences)
        if self.needs_reference and reference_logp_T is None:
            raise InputError("a penalty of the objective needs reference_logp_T; run a reference policy, or drop it")
        inputs = {"new_logp_T": new_logp_T, "reference_logp_T": reference_logp_T, "entropy_T": entropy_T}
        for name, values_T in inputs.items():
            if values_T is not None:
                chosen.check(name, values_T)
        tokens = chosen.tokens(new_logp_T, reference_logp_T)
        factor_S, _ = self._shares(prepared)
        scale = 1.0 / denominator.size if denominator.size > 0 else 0.0
        device = new_logp_T.device
        share_T = (factor_S[chosen.sequence_T.to(factor_S.device)] * scale).to(device)
        weight_T = prepared.weights.weight_T[chosen.at_T].to(device).double()
        sums = MetricSums()
        policy = _checked(self.policy_loss, self.policy_loss.token_loss(tokens), tokens)
        loss_T = torch.where(tokens.kept_T, policy.loss_T.double(), 0.0) * weight_T
        _record(sums, "policy_loss", loss_T, policy, tokens.kept_T)
        for label, penalty in self.penalties:
            term = _checked(penalty, penalty.token_loss(tokens), tokens)
            term_T = torch.where(tokens.kept_T, term.loss_T.double(), 0.0)
            _record(sums, f"penalty_{label}", term_T, term, tokens.kept_T)
            loss_T = loss_T + term_T
        _record_drift(sums, tokens, entropy_T)
        return LossOut((loss_T * share_T).sum(), sums)

    def _shares(self, prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        batch = prepared.batch
        counted_S = sum_by_sequence(prepared.counted_T.double(), batch.sequence_T, batch.num_sequences)
        shares = self.denominator_rule.shares(counted_S, batch.max_tokens)
        for name in ("factor_S", "size_S"):
            values_S = getattr(shares, name)
            if values_S.shape != counted_S.shape or not bool(torch.isfinite(values_S).all()):
                raise InputError(
                    f"{type(self.denominator_rule).__name__} gave {name} of shape {list(values_S.shape)}, or a number "
                    f"that is not finite; give one finite number per sequence, [{batch.num_sequences}]"
                )
        return shares.factor_S.double(), shares.size_S.double()


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """The tokens of some sequences of a batch."""

    prepared: Prepared
    at_T: torch.Tensor
    """int64: their places in the batch."""
    sequence_T: torch.Tensor
    """int64: their sequences in the batch."""
    local_T: torch.Tensor
    """int64: their sequences counted within the micro-batch."""

    @classmethod
    def of(cls, prepared: Prepared, sequences: torch.Tensor) -> _Chosen:
        batch = prepared.batch
        sequences = sequences.to(device=batch.sequence_T.device, dtype=torch.int64).reshape(-1)
        if len(sequences) and not 0 <= int(sequences.min()) <= int(sequences.max()) < batch.num_sequences:
            raise InputError(f"sequences must be 0 to {batch.num_sequences - 1}, not {sequences.tolist()}")
        lengths_S = batch.lengths_S
        starts_S = lengths_S.cumsum(0) - lengths_S
        lengths, starts = lengths_S[sequences], starts_S[sequences]
        local_T = torch.repeat_interleave(torch.arange(len(sequences), device=lengths.device), lengths)
        begins = lengths.cumsum(0) - lengths
        at_T = torch.arange(len(local_T), device=lengths.device) + (starts - begins)[local_T]
        return cls(prepared, at_T, sequences[local_T], local_T)

    def check(self, name: str, values_T: torch.Tensor) -> None:
        if values_T.shape != self.at_T.shape:
            raise InputError(
                f"{name} has shape {list(values_T.shape)}; give one number per drawn token of the sequences, "
                f"[{len(self.at_T)}]"
            )
        require_finite(name, values_T, self.sequence_T.to(values_T.device))

    def tokens(self, new_logp_T: torch.Tensor, reference_logp_T: torch.Tensor | None) -> PolicyTokens:
        prepared, device = self.prepared, new_logp_T.device
        return PolicyTokens(
            new_logp_T=new_logp_T.float(),
            old_logp_T=prepared.batch.old_logp_T[self.at_T].to(device),
            rollout_logp_T=prepared.batch.rollout_logp_T[self.at_T].to(device),
            advantage_T=prepared.advantage_S[self.sequence_T].to(device),
            sequence_T=self.local_T.to(device),
            kept_T=prepared.weights.kept_T[self.at_T].to(device),
            reference_logp_T=None if reference_logp_T is None else reference_logp_T.detach().float().to(device),
        )


def _checked(part: ObjectivePart, term: TokenLoss, tokens: PolicyTokens) -> TokenLoss:
    if term.loss_T.shape != tokens.new_logp_T.shape:
        raise InputError(
            f"{type(part).__name__} gave a loss of shape {list(term.loss_T.shape)}; give one number per token, "
            f"[{len(tokens.new_logp_T)}]"
        )
    require_finite(f"the loss of {type(part).__name__}", term.loss_T, tokens.sequence_T)
    return term


def _record(sums: MetricSums, name: str, loss_T: torch.Tensor, term: TokenLoss, kept_T: torch.Tensor) -> None:
    sums.add_tokens(PREFIX + name, loss_T, kept_T)
    for stat, values_T in term.stats.items():
        sums.add_tokens(PREFIX + stat, values_T, kept_T)


def _record_drift(sums: MetricSums, tokens: PolicyTokens, entropy_T: torch.Tensor | None) -> None:
    """How far the policy has moved since the rollout: KL(old || new) by its k1 and k3 estimators; and the entropy."""
    log_ratio_T = tokens.new_logp_T.detach().double() - tokens.old_logp_T.double()
    sums.add_tokens(f"{PREFIX}update_kl_k1", -log_ratio_T, tokens.kept_T)
    sums.add_tokens(f"{PREFIX}update_kl_k3", bounded_exp(log_ratio_T) - 1 - log_ratio_T, tokens.kept_T)
    if entropy_T is not None:
        sums.add_tokens(f"{PREFIX}entropy", entropy_T.to(tokens.kept_T.device), tokens.kept_T)


def build_objective(config: ObjectiveConfig) -> Objective:
    """Raises PluginError when a part cannot be loaded, and whatever a part raises for its options."""
    return Objective(
        reward_stages=tuple(_build(each) for each in config.reward_stages),
        advantage=_build(config.advantage),
        corrections=tuple(_labelled(config.corrections)),
        policy_loss=_build(config.policy_loss),
        penalties=tuple(_labelled(config.penalties)),
        denominator_rule=_build(config.denominator),
        counts_rejected=config.rejected_tokens == "counted",
    )


def _build(config: PluginConfig) -> Any:
    return registry.load(GROUP, config.type)(config)


def _labelled(configs: Sequence[PluginConfig]) -> Iterator[tuple[str, Any]]:
    """Parts with their names in metrics; the second of a name is ``name_2``."""
    seen: Counter[str] = Counter()
    for config in configs:
        label = config.type.rpartition(":")[2].rpartition(".")[2]
        seen[label] += 1
        yield (label if seen[label] == 1 else f"{label}_{seen[label]}"), _build(config)
