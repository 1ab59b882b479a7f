"""The student's loss on a run of tokens, and what is measured of them on the way.

Shapes: T tokens of one trace, V vocabulary, K ids kept per token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from sparrow_core import registry
from sparrow_core.mismatch import acceptance_bounds, acceptance_exact
from sparrow_core.model import LanguageModel
from sparrow_core.train_contracts import DistillLoss
from sparrow_trainers.distill.config import DistillConfig
from sparrow_trainers.distill.losses.forward_kl import ForwardKL
from sparrow_trainers.distill.losses.sparse_ppo import sparse_ppo
from sparrow_trainers.distill.support import exact_support, topk_support
from sparrow_trainers.distill.teacher import StudentSample


@dataclass(frozen=True, slots=True)
class Term:
    name: str
    weight: float
    loss: DistillLoss


def build_terms(config: DistillConfig) -> list[Term]:
    """The configured losses; a name that occurs twice gets a number."""
    terms: list[Term] = []
    for entry in config.losses:
        name = entry.loss.type
        same = sum(term.name.partition("#")[0] == name for term in terms)
        loss_class = registry.load("sparrow.distill_losses", name)
        terms.append(Term(f"{name}#{same + 1}" if same else name, entry.weight, loss_class(entry.loss)))
    return terms


@dataclass(frozen=True, slots=True, eq=False)
class Acceptances:
    """float32 ``[T]`` on the host: of the student as it is now against the teacher."""

    lower: torch.Tensor
    upper: torch.Tensor
    exact: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class TokenLosses:
    loss: torch.Tensor
    """Scalar with gradient: the weighted terms summed over the tokens."""
    sums: dict[str, float] = field(default_factory=dict)
    """Each term, and other statistics, summed over the tokens; unweighted."""
    acceptances: Acceptances | None = None


def token_losses(
    model: LanguageModel,
    hidden_TD: torch.Tensor,
    sample: StudentSample,
    rows: slice,
    terms: list[Term],
    config: DistillConfig,
) -> TokenLosses:
    """Losses of the tokens ``rows`` of a sample; ``hidden_TD`` are the student's hidden states of these alone."""
    trace, device = sample.trace, hidden_TD.device
    ids_TK = trace.topk_ids[rows].to(device).long()
    student_logits = model.logits(hidden_TD)
    teacher_logits = None
    if sample.teacher_hidden_TD is not None:
        with torch.no_grad():
            teacher_logits = model.logits(sample.teacher_hidden_TD[rows].to(device, model.dtype))
    if config.support == "exact":
        assert teacher_logits is not None, "the exact support needs the teacher's hidden states"
        student, teacher = exact_support(student_logits, teacher_logits, trace.temperature)
        acceptances = _exact_acceptances(student.detach(), teacher, ids_TK.shape[1])
    else:
        stored = None if teacher_logits is not None else sample.teacher_topk_logp_TK
        student, teacher = topk_support(
            student_logits,
            ids_TK,
            trace.temperature,
            teacher_logits_TV=teacher_logits,
            teacher_topk_logp_TK=None if stored is None else stored[rows].to(device),
        )
        acceptances = _bucket_acceptances(student.detach(), teacher)

    sums: dict[str, float] = {}
    loss = hidden_TD.new_zeros((), dtype=torch.float32)
    for term in terms:
        total = term.loss.token_loss(student, teacher).sum()
        sums[term.name] = float(total.detach())
        loss = loss + term.weight * total
    if "forward_kl" not in sums:
        sums["forward_kl"] = float(ForwardKL(ForwardKL.Config()).token_loss(student.detach(), teacher).sum())
    policy, statistics = _policy_term(student_logits, sample, rows, config)
    return TokenLosses(loss + policy, sums | statistics, acceptances)


def _policy_term(
    student_logits_TV: torch.Tensor, sample: StudentSample, rows: slice, config: DistillConfig
) -> tuple[torch.Tensor, dict[str, float]]:
    """The weighted policy loss, summed, and its statistics."""
    trace, device = sample.trace, student_logits_TV.device
    ids_T1 = trace.token_ids[rows].to(device).long()[:, None]
    scaled_TV = student_logits_TV / trace.temperature
    new_logp_T = (scaled_TV.gather(-1, ids_T1) - scaled_TV.logsumexp(-1, keepdim=True)).squeeze(-1)
    rollout_logp_T = trace.logprobs[rows].to(device)
    statistics = {"rollout_logp_gap": float((new_logp_T.detach() - rollout_logp_T).abs().sum())}
    if config.sparse_ppo.weight == 0:
        return new_logp_T.new_zeros(()), statistics
    assert sample.advantage is not None, "the policy term needs advantages"
    loss_T, held_T = sparse_ppo(
        new_logp_T,
        rollout_logp_T,
        torch.full_like(rollout_logp_T, sample.advantage),
        clip_low=config.sparse_ppo.clip_low,
        clip_high=config.sparse_ppo.clip_high,
    )
    statistics |= {"sparse_ppo": float(loss_T.detach().sum()), "sparse_ppo_clipped": float(held_T.sum())}
    return config.sparse_ppo.weight * loss_T.sum(), statistics


def _exact_acceptances(student_TV: torch.Tensor, teacher_TV: torch.Tensor, width: int) -> Acceptances:
    topk_TK, ids_TK = student_TV.topk(min(width, student_TV.shape[1]), dim=-1)
    lower, upper = acceptance_bounds(teacher_TV, ids_TK, topk_TK)
    return Acceptances(lower.cpu(), upper.cpu(), acceptance_exact(teacher_TV, student_TV).cpu())


def _bucket_acceptances(student_TB: torch.Tensor, teacher_TB: torch.Tensor) -> Acceptances:
    shared_TB = torch.minimum(student_TB.exp(), teacher_TB.exp())
    lower = shared_TB[:, :-1].sum(-1).clamp(0, 1)
    return Acceptances(lower.cpu(), (lower + shared_TB[:, -1]).clamp(0, 1).cpu(), None)
