"""Means and spreads of rewards by group, in float64.

Shapes: S sequences, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    index_S: torch.Tensor
    """int64: 0 to G - 1."""
    size_G: torch.Tensor
    mean_G: torch.Tensor
    std_G: torch.Tensor
    """Of the population: the root of the mean squared deviation."""
    is_flat_G: torch.Tensor
    """bool: all rewards are equal, so the group teaches nothing."""

    @property
    def mean_S(self) -> torch.Tensor:
        return self.mean_G[self.index_S]

    @property
    def std_S(self) -> torch.Tensor:
        return self.std_G[self.index_S]

    @property
    def is_flat_S(self) -> torch.Tensor:
        return self.is_flat_G[self.index_S]

    def centred(self, reward_S: torch.Tensor) -> torch.Tensor:
        """float64 ``[S]``: rewards less their group's mean; exactly 0 in a flat group."""
        return torch.where(self.is_flat_S, 0.0, reward_S.double() - self.mean_S)


def groups_of(reward_S: torch.Tensor, group_S: torch.Tensor) -> Groups:
    """Statistics of each group of this rank."""
    numbers_G, index_S = torch.unique(group_S, return_inverse=True)
    reward_S = reward_S.double()
    zeros_G = torch.zeros(len(numbers_G), dtype=torch.float64, device=reward_S.device)
    size_G = zeros_G.index_add(0, index_S, torch.ones_like(reward_S))
    mean_G = zeros_G.index_add(0, index_S, reward_S) / size_G
    std_G = (zeros_G.index_add(0, index_S, (reward_S - mean_G[index_S]) ** 2) / size_G).sqrt()
    low_G = zeros_G.scatter_reduce(0, index_S, reward_S, "amin", include_self=False)
    high_G = zeros_G.scatter_reduce(0, index_S, reward_S, "amax", include_self=False)
    return Groups(index_S, size_G, mean_G, std_G, low_G == high_G)
