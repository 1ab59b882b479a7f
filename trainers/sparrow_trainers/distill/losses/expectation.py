"""The sum that all divergences are made of."""

from __future__ import annotations

import torch


def expected_gap(weight_logp_TV: torch.Tensor, first_TV: torch.Tensor, second_TV: torch.Tensor) -> torch.Tensor:
    """``sum_v exp(weight) (first - second)`` per token, ``[T]``; terms of zero weight are 0 whatever the rest is."""
    weight_TV = weight_logp_TV.exp()
    counts_TV = weight_TV > 0
    gap_TV = torch.where(counts_TV, first_TV, 0) - torch.where(counts_TV, second_TV, 0)
    return (weight_TV * gap_TV).sum(-1)
