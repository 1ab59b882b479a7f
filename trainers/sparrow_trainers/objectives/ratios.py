"""Log-ratios, their exponentials and sums per sequence, in the one way that all parts share.

Shapes: S sequences, T tokens of them laid end to end.
"""

from __future__ import annotations

import torch

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import ResponseBatch

LOG_RATIO_LIMIT = 20.0
"""A log-ratio is clamped to plus or minus this before exp; beyond it a ratio is constant and has no gradient."""


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp of the clamped log-ratio: finite and with finite gradient for every finite input."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sum_by_sequence(values_T: torch.Tensor, sequence_T: torch.Tensor, num_sequences: int) -> torch.Tensor:
    """``[S]`` in the dtype of ``values_T``; 0 for a sequence without tokens. Passes gradients on."""
    return values_T.new_zeros(num_sequences).index_add(0, sequence_T, values_T)


def mismatch_log_ratio(batch: ResponseBatch) -> torch.Tensor:
    """float64 ``[T]``: log rho = old - rollout, not clamped."""
    return batch.old_logp_T.double() - batch.rollout_logp_T.double()


def require_finite(name: str, values_T: torch.Tensor, sequence_T: torch.Tensor) -> None:
    """Raises InputError with the sequence and the position in it of the first NaN or infinity."""
    finite_T = torch.isfinite(values_T.detach())
    if bool(finite_T.all()):
        return
    at = int((~finite_T).nonzero()[0])
    sequence = int(sequence_T[at])
    position = at - int((sequence_T < sequence).sum())
    raise InputError(
        f"{name} is {float(values_T[at])} at token {position} of sequence {sequence} "
        f"({int((~finite_T).sum())} of {len(values_T)} tokens are not finite); no update can be made from it: "
        "look for overflow in the model's forward (memory.compute_dtype) or weights that have diverged"
    )
