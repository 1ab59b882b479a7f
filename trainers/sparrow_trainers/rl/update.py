"""The update of one RL step: minibatches of packed sequences through the objective into the learner.

Shapes: T drawn tokens of a micro-batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

from sparrow_core.mismatch import log_softmax_at
from sparrow_core.model import PackedDocuments
from sparrow_trainers.objectives.objective import Denominator, MetricSums, Objective, Prepared
from sparrow_trainers.rl.batches import by_rank, micro_batches, minibatches
from sparrow_trainers.rl.sample import Sample
from sparrow_trainers.titan.learner import Learner

_LOGIT_CHUNK = 512
"""Tokens whose full-vocabulary log-probs are held at once."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    minibatches: int
    epochs: int
    micro_batch_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class UpdateResult:
    sums: MetricSums
    """Over all tokens of all updates, all ranks."""
    grad_norms: tuple[float, ...]
    losses: tuple[float, ...]
    """Of each optimizer step, global."""
    first_drift: float
    """Largest |new - old| of a token before the first optimizer step: what kernels alone account for."""


def update(
    learner: Learner, objective: Objective, prepared: Prepared, samples: Sequence[Sample], settings: UpdateSettings
) -> UpdateResult:
    """``epochs`` times over all minibatches, one optimizer step each. ``samples`` are the batch's sequences.

    Every rank gets the whole batch and works on its share; the gradients' sum does not depend on the split.
    """
    lengths = [sample.num_tokens for sample in samples]
    groups = [sample.key.prompt for sample in samples]
    sums, norms, losses, drifts = MetricSums(), [], [], []
    for epoch in range(settings.epochs):
        for part in minibatches(groups, settings.minibatches, seed=settings.seed * 1009 + epoch):
            denominator = objective.denominator(prepared, torch.tensor(part), same_everywhere)
            share = _accumulate(learner, objective, prepared, samples, part, lengths, denominator, settings)
            losses.append(float(learner.ranks.sum(share.loss)))
            sums.merge(share.sums.reduce(learner.ranks.sum))
            drifts.append(max(learner.ranks.gather(share.drift)))
            norms.append(learner.step())
    return UpdateResult(sums, tuple(norms), tuple(losses), drifts[0])


def same_everywhere(values: torch.Tensor) -> torch.Tensor:
    """Every rank holds the whole batch, so there is nothing to add."""
    return values


@dataclass(slots=True)
class _Share:
    """What one rank's micro-batches of a minibatch add up to."""

    loss: torch.Tensor
    """float64 scalar."""
    sums: MetricSums
    drift: float = 0.0


def _accumulate(
    learner: Learner,
    objective: Objective,
    prepared: Prepared,
    samples: Sequence[Sample],
    part: list[int],
    lengths: list[int],
    denominator: Denominator,
    settings: UpdateSettings,
) -> _Share:
    """Gradients of this rank's share of one minibatch."""
    ranks = learner.ranks
    shares = [
        micro_batches(each, lengths, settings.micro_batch_tokens) for each in by_rank(part, lengths, ranks.dp_degree)
    ]
    mine = shares[ranks.dp_rank]
    share = _Share(torch.zeros((), dtype=torch.float64), MetricSums())
    for index in range(max(map(len, shares))):
        if index < len(mine):
            micro = mine[index]
            new_logp_T, entropy_T = response_logprobs(learner, [samples[i] for i in micro], settings.temperature)
            out = objective.loss(
                prepared,
                torch.tensor(micro),
                new_logp_T,
                denominator,
                entropy_T=entropy_T,
                reference_logp_T=_reference(samples, micro),
            )
            torch.autograd.backward(out.loss)
            share.loss += out.loss.detach().double().cpu()
            share.sums.merge(out.sums)
            old_logp_T = torch.cat([samples[i].old_logp_T for i in micro])
            share.drift = max(share.drift, float((new_logp_T.detach() - old_logp_T).abs().max()))
        else:
            _empty_pass(learner)
    return share


def _empty_pass(learner: Learner) -> None:
    """Take part in the collectives of the other ranks' forward and backward, adding nothing."""
    tokens_1T = torch.zeros(1, 2, dtype=torch.int64, device=learner.ranks.device)
    documents = PackedDocuments(torch.tensor([0, 2], dtype=torch.int32))
    torch.autograd.backward(learner.logits(tokens_1T, documents).sum() * 0.0)


def _reference(samples: Sequence[Sample], micro: list[int]) -> torch.Tensor | None:
    parts = [samples[i].reference_logp_T for i in micro]
    return None if any(part is None for part in parts) else torch.cat([part for part in parts if part is not None])


def response_logprobs(
    learner: Learner, samples: Sequence[Sample], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 log-probs ``[T]`` of the drawn tokens at ``temperature``, on the host with gradients, and entropies."""
    device = learner.ranks.device
    inputs = [torch.cat([s.prompt_ids, s.token_ids[:-1]]).long() for s in samples]
    offsets = torch.tensor([0, *(len(part) for part in inputs)]).cumsum(0)
    documents = PackedDocuments(offsets.to(device=device, dtype=torch.int32))
    logits_TV = learner.logits(torch.cat(inputs)[None].to(device), documents)
    ends = offsets[1:].tolist()
    rows = torch.cat([torch.arange(end - len(s.token_ids), end) for end, s in zip(ends, samples, strict=True)])
    targets_T = torch.cat([s.token_ids for s in samples]).long().to(device)
    logits_TV = logits_TV[rows.to(device)]
    parts = []
    for start in range(0, len(rows), _LOGIT_CHUNK):
        at = slice(start, start + _LOGIT_CHUNK)
        parts.append(checkpoint(_logprobs, logits_TV[at], targets_T[at], temperature, use_reentrant=False))
    logp_T = torch.cat([logp for logp, _ in parts])
    entropy_T = torch.cat([entropy for _, entropy in parts])
    return logp_T.cpu(), entropy_T.detach().cpu()


def _logprobs(
    logits_TV: torch.Tensor, targets_T: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logp_TV = log_softmax_at(logits_TV, temperature)
    with torch.no_grad():
        # 0 * -inf of a token that cannot be drawn adds nothing.
        entropy_T = -torch.nan_to_num(logp_TV.exp() * logp_TV).sum(-1)
    return logp_TV.gather(-1, targets_T[:, None]).squeeze(-1), entropy_T
