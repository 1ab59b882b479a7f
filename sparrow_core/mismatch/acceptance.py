"""Acceptance of a sparse next-token distribution q against the dense one p, per token.

    a_t = sum_v min(p(v), q(v)) = 1 - TV(p, q)      (Sparrow, arXiv 2606.08446)

Both are full softmax distributions at one temperature, never truncated by top-p or top-k. Shapes: T tokens,
V vocabulary, K stored ids. Arithmetic is float32, or float64 when an input is.
"""

from __future__ import annotations

import math

import torch

from sparrow_core.errors import InputError
from sparrow_core.mismatch.checks import (
    MismatchError,
    require_distinct_ids,
    require_logprobs,
    require_same_shape,
)

_CHUNK_ELEMENTS = 1 << 24
"""Probabilities expanded at once; bounds scratch memory, never results."""


def log_softmax_at(logits_TV: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probs of ``softmax(logits / temperature)`` over the last dimension.

    The one temperature rule of rollout and recompute: logits are scaled, log-probs never are.

    Raises:
        InputError: temperature is not a finite number above 0.
        MismatchError: a token's logits hold NaN or +inf, or are all -inf.
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise InputError(f"temperature={temperature} must be a finite number above 0")
    logprobs_TV = torch.log_softmax(_wide(logits_TV) / temperature, dim=-1)
    bad = torch.isnan(logprobs_TV).any(dim=-1).flatten()
    if bool(bad.any()):
        raise MismatchError(
            f"logits of token {int(bad.nonzero()[0])} give NaN log-probs at temperature {temperature}; "
            "they must hold no NaN or +inf, and at least one finite value"
        )
    return logprobs_TV


def acceptance_exact(dense_logprobs_TV: torch.Tensor, sparse_logprobs_TV: torch.Tensor) -> torch.Tensor:
    """``sum_v min(p, q)`` per token, ``[T]`` in [0, 1].

    Computed as ``(sum p + sum q - sum |p - q|) / 2`` with the sums of p and q set to 1, so equal distributions
    give exactly 1 and small differences keep their digits. Tokens are expanded a few at a time.

    Raises:
        InputError: shapes differ.
        MismatchError: NaN or positive log-probs, with the token.
    """
    require_logprobs("dense_logprobs", dense_logprobs_TV)
    require_logprobs("sparse_logprobs", sparse_logprobs_TV)
    require_same_shape(("dense_logprobs", dense_logprobs_TV), ("sparse_logprobs", sparse_logprobs_TV))
    rows = max(1, _CHUNK_ELEMENTS // max(1, dense_logprobs_TV.shape[1]))
    distances = [
        (_probs(p_TV) - _probs(q_TV)).abs_().sum(dim=-1)
        for p_TV, q_TV in zip(torch.split(dense_logprobs_TV, rows), torch.split(sparse_logprobs_TV, rows), strict=True)
    ]
    return (1 - torch.cat(distances) / 2).clamp_(0, 1)


def acceptance_bounds(
    dense_logprobs_TV: torch.Tensor, topk_ids_TK: torch.Tensor, topk_logprobs_TK: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bounds ``(lower_T, upper_T)`` on the acceptance from the full p and the K ids kept of q.

        lower = sum_{v in K} min(p, q)
        upper = lower + min(1 - sum_{v in K} p, 1 - sum_{v in K} q)

    Any K distinct ids give valid bounds; more ids never loosen them.

    Raises:
        InputError: shapes differ, or ids repeat or leave the vocabulary.
        MismatchError: NaN or positive log-probs, with the token.
    """
    require_logprobs("dense_logprobs", dense_logprobs_TV)
    require_logprobs("topk_logprobs", topk_logprobs_TK)
    require_same_shape(("topk_ids", topk_ids_TK), ("topk_logprobs", topk_logprobs_TK))
    if topk_ids_TK.shape[0] != dense_logprobs_TV.shape[0]:
        raise InputError(
            f"topk_ids covers {topk_ids_TK.shape[0]} tokens but dense_logprobs {dense_logprobs_TV.shape[0]}; "
            "both describe the same tokens"
        )
    require_distinct_ids("topk_ids", topk_ids_TK, dense_logprobs_TV.shape[1])
    p_TK = _probs(dense_logprobs_TV.gather(-1, topk_ids_TK.long()))
    q_TK = _probs(topk_logprobs_TK)
    lower_T = torch.minimum(p_TK, q_TK).sum(dim=-1)
    rest_T = torch.minimum(1 - p_TK.sum(dim=-1), 1 - q_TK.sum(dim=-1)).clamp_(min=0)
    return lower_T.clamp(0, 1), (lower_T + rest_T).clamp_(0, 1)


def acceptance_topk_lower(
    dense_ids_TJ: torch.Tensor,
    dense_logprobs_TJ: torch.Tensor,
    sparse_ids_TK: torch.Tensor,
    sparse_logprobs_TK: torch.Tensor,
) -> torch.Tensor:
    """The published lower bound ``[T]``: ``sum min(p, q)`` over ids in both top-K sets.

    For when neither full distribution is at hand; never above the lower bound of ``acceptance_bounds``.

    Raises InputError and MismatchError as ``acceptance_bounds`` does.
    """
    require_logprobs("dense_logprobs", dense_logprobs_TJ)
    require_logprobs("sparse_logprobs", sparse_logprobs_TK)
    require_same_shape(("dense_ids", dense_ids_TJ), ("dense_logprobs", dense_logprobs_TJ))
    require_same_shape(("sparse_ids", sparse_ids_TK), ("sparse_logprobs", sparse_logprobs_TK))
    if len(dense_ids_TJ) != len(sparse_ids_TK):
        raise InputError(f"dense_ids covers {len(dense_ids_TJ)} tokens but sparse_ids {len(sparse_ids_TK)}")
    require_distinct_ids("dense_ids", dense_ids_TJ)
    require_distinct_ids("sparse_ids", sparse_ids_TK)
    shared_TJK = dense_ids_TJ[:, :, None] == sparse_ids_TK[:, None, :]
    least_TJK = torch.minimum(_probs(dense_logprobs_TJ)[:, :, None], _probs(sparse_logprobs_TK)[:, None, :])
    return (least_TJK * shared_TJK).sum(dim=(1, 2)).clamp_(0, 1)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _probs(logprobs: torch.Tensor) -> torch.Tensor:
    return _wide(logprobs).exp()
