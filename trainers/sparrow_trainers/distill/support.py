"""The support a distillation loss sums over: the whole vocabulary, or K stored ids with the rest as one bucket.

Shapes: T tokens, V vocabulary, K ids per token. Log-probs are of the untruncated softmax at the sampling temperature.

Summing outcomes into a bucket never raises a KL or Jensen-Shannon divergence (data processing inequality), so the
bucketed loss is a lower bound of the exact one, and equal to it when K = V - 1 or V.
"""

from __future__ import annotations

import torch

from sparrow_core.errors import InputError
from sparrow_core.mismatch import log_softmax_at

_LEAST_REST = 2.0**-24
"""Probability of the rest where the stored log-probs sum to 1 within float32."""


def bucketed(logits_TV: torch.Tensor, ids_TK: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probs ``[T, K + 1]`` of the ids and, last, of all others together.

    Args:
        ids_TK: distinct within a token.

    Raises InputError and MismatchError as ``log_softmax_at`` does, InputError on ids of other tokens.
    """
    if ids_TK.dim() != 2 or len(ids_TK) != len(logits_TV):
        raise InputError(f"ids cover {tuple(ids_TK.shape)} but logits are of {len(logits_TV)} tokens")
    logp_TV = log_softmax_at(logits_TV, temperature)
    ids_TK = ids_TK.long()
    topk_TK = logp_TV.gather(-1, ids_TK)
    if ids_TK.shape[1] == logits_TV.shape[1]:
        rest_T1 = torch.full_like(topk_TK[:, :1], -torch.inf)
    else:
        rest_T1 = logp_TV.scatter(-1, ids_TK, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([topk_TK, rest_T1], dim=-1)


def with_rest(topk_logp_TK: torch.Tensor) -> torch.Tensor:
    """Stored log-probs ``[T, K]`` with that of all other ids as last column, when the logits are not at hand."""
    rest_T1 = (1 - topk_logp_TK.exp().sum(-1, keepdim=True)).clamp(min=_LEAST_REST).log()
    return torch.cat([topk_logp_TK, rest_T1], dim=-1)


def exact_support(
    student_logits_TV: torch.Tensor, teacher_logits_TV: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Student's and teacher's log-probs ``[T, V]``; the teacher's carry no gradient."""
    student = log_softmax_at(student_logits_TV, temperature)
    return student, log_softmax_at(teacher_logits_TV.detach(), temperature)


def topk_support(
    student_logits_TV: torch.Tensor,
    ids_TK: torch.Tensor,
    temperature: float,
    *,
    teacher_logits_TV: torch.Tensor | None = None,
    teacher_topk_logp_TK: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Student's and teacher's log-probs ``[T, K + 1]`` on the ids of a trace and the rest.

    Args:
        ids_TK: ``Trace.topk_ids``.
        teacher_logits_TV, teacher_topk_logp_TK: one of them: the dense logits, or dense log-probs of the same ids.
    """
    student = bucketed(student_logits_TV, ids_TK, temperature)
    if teacher_logits_TV is not None:
        return student, bucketed(teacher_logits_TV.detach(), ids_TK, temperature)
    if teacher_topk_logp_TK is None or teacher_topk_logp_TK.shape != ids_TK.shape:
        given = None if teacher_topk_logp_TK is None else tuple(teacher_topk_logp_TK.shape)
        raise InputError(
            f"teacher_topk_logp has shape {given} but the ids {tuple(ids_TK.shape)}; give the dense log-probs of "
            "these ids, or the dense logits"
        )
    teacher = with_rest(teacher_topk_logp_TK.detach())
    if ids_TK.shape[1] == student_logits_TV.shape[1]:
        teacher[:, -1] = -torch.inf
    return student, teacher
