"""Checks shared by the mismatch functions: what is wrong, where, and what to give instead."""

from __future__ import annotations

import torch

from sparrow_core.errors import InputError

OVERSHOOT = 1e-6
"""Rounding by which an acceptance may leave [0, 1] before it counts as wrong."""


class MismatchError(ValueError):
    """Log-probs or acceptances that no correct run produces, such as NaN; the message says at which token."""


def require_logprobs(name: str, logprobs_TX: torch.Tensor) -> None:
    """Refuse anything but floating-point ``[T, X]`` log-probs: NaN and values above 0 are errors, -inf is not."""
    if logprobs_TX.dim() != 2:
        raise InputError(f"{name} has shape {tuple(logprobs_TX.shape)}; give [tokens, vocabulary or K]")
    if not logprobs_TX.is_floating_point():
        raise InputError(f"{name} has dtype {logprobs_TX.dtype}; give floating-point log-probs")
    bad_TX = ~(logprobs_TX <= 1e-3)
    if bool(bad_TX.any()):
        token, entry = (int(i) for i in bad_TX.nonzero()[0])
        value = float(logprobs_TX[token, entry])
        raise MismatchError(f"{name} is {value} at token {token}, entry {entry}; log-probs are at most 0 and never NaN")


def require_same_shape(first: tuple[str, torch.Tensor], second: tuple[str, torch.Tensor]) -> None:
    if first[1].shape != second[1].shape:
        raise InputError(
            f"{first[0]} has shape {tuple(first[1].shape)} but {second[0]} has {tuple(second[1].shape)}; "
            "both describe the same tokens"
        )


def require_distinct_ids(name: str, ids_TK: torch.Tensor, vocab: int | None = None) -> None:
    """Refuse ids that repeat within a token's row, or lie outside a vocabulary of ``vocab`` ids."""
    if ids_TK.numel() == 0:
        return
    if vocab is not None and (int(ids_TK.min()) < 0 or int(ids_TK.max()) >= vocab):
        raise InputError(f"{name} spans {int(ids_TK.min())}..{int(ids_TK.max())}; ids lie in 0..{vocab - 1}")
    sorted_TK = ids_TK.sort(dim=-1).values
    repeated_T = (sorted_TK[:, 1:] == sorted_TK[:, :-1]).any(dim=-1)
    if bool(repeated_T.any()):
        raise InputError(f"{name} names an id twice at token {int(repeated_T.nonzero()[0])}; each id may count once")


def require_acceptance(name: str, values: torch.Tensor) -> torch.Tensor:
    """The values as float64 on the host, clamped to [0, 1] where they overshoot by rounding only."""
    values = values.detach().to("cpu", torch.float64)
    bad = ~((values >= -OVERSHOOT) & (values <= 1 + OVERSHOOT))
    if bool(bad.any()):
        at = int(bad.flatten().nonzero()[0])
        raise MismatchError(f"{name} is {float(values.flatten()[at])} at token {at}; acceptance lies in [0, 1]")
    return values.clamp(0.0, 1.0)
