"""The noise floor: what dense rollout against dense recompute differ by, from kernels and rounding alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from sparrow_core.errors import InputError
from sparrow_core.mismatch.checks import MismatchError, require_acceptance, require_same_shape
from sparrow_core.mismatch.sketch import AcceptanceSketch

if TYPE_CHECKING:
    from sparrow_core.trace import Trace


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Dense against dense, over ``tokens`` tokens. A sparse run cannot be told from dense any closer than this."""

    tokens: int
    kind: Literal["exact", "lower"]
    """Whether the acceptances are exact, or lower bounds that also miss the mass outside the top K."""
    min: float
    tail: float
    """Quantile of the acceptance at ``quantile``, from a sketch: at most 1 / 4096 below the exact one."""
    quantile: float
    mean: float
    max_logprob_diff: float
    """Largest |rollout - recompute| log-prob of a drawn token."""
    mean_logprob_diff: float


def noise_floor_of(
    acceptance_T: torch.Tensor,
    logprob_diff_T: torch.Tensor,
    *,
    quantile: float = 0.05,
    kind: Literal["exact", "lower"] = "exact",
) -> NoiseFloor:
    """Summary of per-token acceptances and log-prob differences ``[T]`` of one dense run.

    Raises InputError when there are no tokens or the lengths differ, MismatchError on NaN.
    """
    require_same_shape(("acceptance", acceptance_T), ("logprob_diff", logprob_diff_T))
    if not acceptance_T.numel():
        raise InputError("the noise floor needs at least one token; give dense traces that drew some")
    values_T = require_acceptance("acceptance", acceptance_T)
    diff_T = logprob_diff_T.detach().to("cpu", torch.float64).abs()
    if bool(diff_T.isnan().any()):
        raise MismatchError(f"logprob_diff is NaN at token {int(diff_T.isnan().nonzero()[0])}")
    sketch = AcceptanceSketch()
    sketch.add(values_T)
    return NoiseFloor(
        tokens=values_T.numel(),
        kind=kind,
        min=float(values_T.min()),
        tail=sketch.quantile(quantile),
        quantile=quantile,
        mean=sketch.mean,
        max_logprob_diff=float(diff_T.max()),
        mean_logprob_diff=float(diff_T.mean()),
    )


def noise_floor(traces: Sequence[Trace], *, quantile: float = 0.05) -> NoiseFloor:
    """The noise floor of dense traces that were scored densely.

    Exact acceptances are used when every trace has them, else lower bounds.

    Raises InputError naming the trace that has no dense scores.
    """
    scores = [trace.scores() for trace in traces]
    exact = [s.acceptance_exact for s in scores if s.acceptance_exact is not None]
    complete = len(exact) == len(scores)
    values = exact if complete else [s.acceptance_lower for s in scores]
    diffs = [s.logprobs - t.logprobs for s, t in zip(scores, traces, strict=True)]
    if not values:
        raise InputError("the noise floor needs at least one dense trace")
    return noise_floor_of(torch.cat(values), torch.cat(diffs), quantile=quantile, kind="exact" if complete else "lower")
