"""Attention by its definition: float64, one sequence and one head at a time. Shares no code with any backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparrow_core.testing.paged import RandomSequence

RELATIVE_RMSE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""How far a backend may be from the oracle, by dtype."""


def attend(
    sequence: RandomSequence, position: int, scale: float, pages_K: Sequence[Sequence[int]] | None, page_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[N, D]`` and natural-log LSE ``[N]``, float64, of the query at ``position``.

    Args:
        pages_K: logical pages each KV head attends to; None for all. Tokens after ``position`` are never seen.
    """
    q_ND = sequence.q_LND[position].double()
    num_heads, head_dim = q_ND.shape
    num_kv_heads = sequence.k_LKD.shape[1]
    out_ND = torch.zeros(num_heads, head_dim, dtype=torch.float64)
    lse_N = torch.full((num_heads,), -torch.inf, dtype=torch.float64)
    for head in range(num_heads):
        kv_head = head // (num_heads // num_kv_heads)
        seen = list(range(position + 1))
        if pages_K is not None:
            seen = [token for token in seen if token // page_size in set(pages_K[kv_head])]
        logits = sequence.k_LKD[seen, kv_head].double() @ q_ND[head] * scale
        lse_N[head] = logits.logsumexp(0)
        out_ND[head] = (logits - lse_N[head]).exp() @ sequence.v_LKD[seen, kv_head].double()
    return out_ND, lse_N


def assert_close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Relative RMSE within ``RELATIVE_RMSE[dtype]``, and not one NaN."""
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    assert got.shape == expected.shape, f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    bad = got.isnan().nonzero()
    assert not len(bad), f"NaN at {bad[0].tolist()} and {len(bad) - 1} more places"
    error = (got - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp(min=1e-30)
    assert error <= RELATIVE_RMSE[dtype], f"relative RMSE {error:.3g} is above {RELATIVE_RMSE[dtype]:g} for {dtype}"
