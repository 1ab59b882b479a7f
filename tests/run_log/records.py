"""Steps of a training run, made from a real mismatch stream."""

from __future__ import annotations

import torch

from sparrow_core.mismatch import MismatchStream, TokenMismatch
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule
from sparrow_core.train_log import RunInfo, StepRecord, bin_records

INFO = RunInfo(model="synthetic", policy="tail_threshold", tau=0.86, quantile=0.05, bin_tokens=500, selector="quest")
SCHEDULE = BudgetSchedule((8, 16, DENSE_PAGES), bin_tokens=500)


def stream(step: int = 0) -> MismatchStream:
    """Contexts of 100 to 899 tokens: bins 0 and 1 of three hold tokens."""
    generator = torch.Generator().manual_seed(step)
    lengths_T = torch.arange(100, 900)
    lower_T = 1 - 0.3 * torch.rand(800, generator=generator) ** 3
    result = MismatchStream(bin_tokens=500, num_bins=3, quantile=0.05)
    result.observe(
        TokenMismatch(
            lengths_T=lengths_T,
            lower_T=lower_T,
            upper_T=(lower_T + 0.01).clamp(max=1.0),
            pages_T=torch.full_like(lengths_T, 8),
            attended_T=lengths_T.clamp(max=128),
        )
    )
    return result


def record(step: int, **metrics: float) -> StepRecord:
    return StepRecord(step, step, metrics or {"reward/mean": step / 8}, bin_records(stream(step), SCHEDULE))
