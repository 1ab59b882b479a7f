"""Page tables over a shuffled pool, as after long use: every row's pages are its own, in no order."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def spread_lengths(batch: int, longest: int) -> list[int]:
    """``batch`` lengths spread evenly over 1 to ``longest``: a full batch amid its rollouts."""
    return [max(1, (row + 1) * longest // batch) for row in range(batch)]


def num_pages(lengths: Sequence[int], page_size: int) -> int:
    return sum(-(-length // page_size) for length in lengths)


def shuffled_table(lengths: Sequence[int], width: int, page_size: int, generator: torch.Generator) -> torch.Tensor:
    """``[B, width]`` int32 on the generator's device; entries past a row's last page repeat other valid ids."""
    device = generator.device
    counts_B = torch.tensor([-(-length // page_size) for length in lengths], device=device)
    total = int(counts_B.sum())
    order_P = torch.randperm(total, generator=generator, device=device)
    starts_B = counts_B.cumsum(0) - counts_B
    at_BW = (starts_B[:, None] + torch.arange(width, device=device)).clamp_(max=total - 1)
    return order_P[at_BW].int()
