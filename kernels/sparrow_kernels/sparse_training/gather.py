"""The op of ``naive.py`` in plain torch by gathering the selected pages: work is linear in what is selected.

The backward pass computes the attention weights again from the saved LSE. Callers bound C, which bounds scratch:
``C * K * J * S * D`` elements for each of keys, values and their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparrow_kernels.paged_attention.naive import gather_pages, math_dtype
from sparrow_kernels.select_pages.naive import num_pages


def forward(
    q_CND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    pages_CKJ: torch.Tensor,
    counts_CK: torch.Tensor,
    lengths_C: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[C, N, D]`` in the query's dtype and natural-log LSE ``[C, N]``; see ``naive.sparse_attention``."""
    C, N, D = q_CND.shape
    gathered = _gather(q_CND, k_PKSD, v_PKSD, pages_CKJ, counts_CK, lengths_C, scale)
    lse_CKG = gathered.scores_CKGX.logsumexp(-1)
    out_CKGD = _weights(gathered.scores_CKGX, lse_CKG[..., None]) @ gathered.v_CKXD
    return out_CKGD.reshape(C, N, D).to(q_CND.dtype), lse_CKG.reshape(C, N)


def backward(
    grad_CND: torch.Tensor,
    q_CND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    out_CND: torch.Tensor,
    lse_CN: torch.Tensor,
    pages_CKJ: torch.Tensor,
    counts_CK: torch.Tensor,
    lengths_C: torch.Tensor,
    scale: float,
    grad_k_PKSD: torch.Tensor,
    grad_v_PKSD: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the queries, ``[C, N, D]`` in their dtype.

    Those of keys and values are added to ``grad_k_PKSD`` and ``grad_v_PKSD`` (float32, or float64 for float64).
    """
    C, N, D = q_CND.shape
    K = k_PKSD.shape[1]
    dtype = math_dtype(q_CND.dtype)
    group = (C, K, N // K, D)
    q_CKGD, out_CKGD, grad_CKGD = (x.reshape(group).to(dtype) for x in (q_CND, out_CND, grad_CND))
    lse_CKG1 = lse_CN.reshape(C, K, -1, 1).to(dtype)

    gathered = _gather(q_CND, k_PKSD, v_PKSD, pages_CKJ, counts_CK, lengths_C, scale)
    weight_CKGX = _weights(gathered.scores_CKGX, lse_CKG1)
    delta_CKG1 = (grad_CKGD * out_CKGD).sum(-1, keepdim=True)
    grad_scores_CKGX = weight_CKGX * (grad_CKGD @ gathered.v_CKXD.mT - delta_CKG1) * scale
    add_to_pages(grad_v_PKSD, pages_CKJ, weight_CKGX.mT @ grad_CKGD)
    add_to_pages(grad_k_PKSD, pages_CKJ, grad_scores_CKGX.mT @ q_CKGD)
    grad_q_CKGD = grad_scores_CKGX @ gathered.k_CKXD
    return grad_q_CKGD.reshape(C, N, D).to(q_CND.dtype)


@dataclass(frozen=True, slots=True)
class _Gathered:
    k_CKXD: torch.Tensor
    v_CKXD: torch.Tensor
    scores_CKGX: torch.Tensor
    """-inf where a query does not attend; keys and values are 0 there."""


def _gather(
    q_CND: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    pages_CKJ: torch.Tensor,
    counts_CK: torch.Tensor,
    lengths_C: torch.Tensor,
    scale: float,
) -> _Gathered:
    C, N, D = q_CND.shape
    _, K, S, _ = k_PKSD.shape
    dtype = math_dtype(q_CND.dtype)
    unfilled_C1 = (num_pages(lengths_C, S) * S - lengths_C)[:, None]
    live_CKX = torch.arange(pages_CKJ.shape[2] * S, device=q_CND.device) < (counts_CK * S - unfilled_C1)[..., None]
    dead_CKX1 = ~live_CKX[..., None]
    k_CKXD, v_CKXD = (gather_pages(x, pages_CKJ).to(dtype).masked_fill_(dead_CKX1, 0) for x in (k_PKSD, v_PKSD))
    q_CKGD = q_CND.reshape(C, K, N // K, D).to(dtype) * scale
    scores_CKGX = (q_CKGD @ k_CKXD.mT).masked_fill_(~live_CKX[:, :, None], -torch.inf)
    return _Gathered(k_CKXD, v_CKXD, scores_CKGX)


def _weights(scores_CKGX: torch.Tensor, lse_CKG1: torch.Tensor) -> torch.Tensor:
    return (scores_CKGX - lse_CKG1.masked_fill(lse_CKG1 == -torch.inf, 0)).exp()


def add_to_pages(pool_PKSD: torch.Tensor, pages_CKJ: torch.Tensor, values_CKXD: torch.Tensor) -> None:
    """Add each gathered token's value (0 past the count) to its place in the pool. The reverse of ``gather_pages``."""
    _, K, S, D = pool_PKSD.shape
    rows_X = (pages_CKJ.long() * K + torch.arange(K, device=pages_CKJ.device)[:, None]).flatten()
    pool_PKSD.view(-1, S * D).index_add_(0, rows_X, values_CKXD.reshape(-1, S * D))
