"""The clipped surrogate that PPO-like losses share."""

from __future__ import annotations

import torch

from sparrow_core.train_contracts import TokenLoss


def clipped_surrogate(
    ratio_T: torch.Tensor, advantage_T: torch.Tensor, low: float, high: float, dual: float | None = None
) -> TokenLoss:
    """``-min(r A, clip(r, low, high) A)``; with ``dual``, no lower than ``dual A`` where A < 0 (dual-clip PPO)."""
    surrogate_T = torch.minimum(ratio_T * advantage_T, ratio_T.clamp(low, high) * advantage_T)
    negative_T = advantage_T < 0
    stats = {
        "ratio": ratio_T.detach(),
        "clipped_low": (negative_T & (ratio_T < low)).float(),
        "clipped_high": ((advantage_T > 0) & (ratio_T > high)).float(),
    }
    if dual is not None:
        stats["clipped_dual"] = (negative_T & (ratio_T > dual)).float()
        surrogate_T = torch.where(negative_T, torch.maximum(surrogate_T, dual * advantage_T), surrogate_T)
    return TokenLoss(-surrogate_T, stats)
