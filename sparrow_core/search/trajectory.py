"""Cost of a trajectory from a cost per decode step: what the schedule search minimises."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sparrow_core.contracts import CostModel
from sparrow_core.schedule import BudgetSchedule


def bin_costs(
    model: CostModel,
    pages: Sequence[int],
    *,
    bin_tokens: int,
    num_bins: int,
    batch: int,
    tokens_per_bin: Sequence[float] | None = None,
    points: int = 8,
) -> NDArray[np.float64]:
    """Cost in the model's unit of each bin's tokens under each budget, ``[len(pages), num_bins]``.

    One token costs ``1 / batch`` of a step of ``batch`` sequences of equal length; a bin's cost is the mean over
    ``points`` lengths (midpoint rule) times its tokens.

    Args:
        tokens_per_bin: ``[num_bins]`` tokens drawn in each bin; every length once when None.
    """
    tokens = np.full(num_bins, float(bin_tokens)) if tokens_per_bin is None else np.asarray(tokens_per_bin, float)
    offsets = (np.arange(points) + 0.5) * bin_tokens / points
    costs = np.empty((len(pages), num_bins))
    for row, budget in enumerate(pages):
        for index in range(num_bins):
            steps = [_step(model, int(index * bin_tokens + offset), budget, batch) for offset in offsets]
            costs[row, index] = tokens[index] * float(np.mean(steps)) / batch
    return costs


def trajectory_cost(
    model: CostModel, schedule: BudgetSchedule, *, start: int, stop: int, batch: int, stride: int = 1
) -> float:
    """Cost per sequence of decoding from context ``start`` to ``stop`` in step with ``batch - 1`` others.

    Every ``stride``-th step is evaluated, and stands for its neighbours.
    """
    lengths = range(start + (stride + 1) // 2, stop + 1, stride)
    budgets = schedule.pages_at(torch.tensor(lengths)).tolist()
    total = sum(_step(model, length, budget, batch) for length, budget in zip(lengths, budgets, strict=True))
    return total * (stop - start) / len(lengths) / batch


def _step(model: CostModel, length: int, pages: int, batch: int) -> float:
    shape = (batch,)
    lengths_B = torch.full(shape, max(length, 1), dtype=torch.int32)
    return model.step_cost(lengths_B, torch.full(shape, pages, dtype=torch.int32))
