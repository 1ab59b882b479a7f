"""What a report shows, whatever files it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparrow_core.mismatch import AcceptanceSketch


@dataclass(frozen=True, slots=True)
class TailBin:
    """One configuration in one length bin. Statistics are None where there are too few tokens."""

    lo: int
    hi: int | None
    tokens: int
    tail: float | None
    interval: tuple[float, float] | None
    mean: float | None
    kept_fraction: float | None

    @property
    def span(self) -> str:
        return f"{self.lo:,}+" if self.hi is None else f"{self.lo:,}–{self.hi - 1:,}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One budget, policy or schedule with its tail by length."""

    label: str
    bins: tuple[TailBin, ...]
    pages: int | None = None
    """The budget, where it is one for every length."""
    selector: str = ""
    kept_fraction: float | None = None
    """Over all bins; None computes it from theirs."""

    @property
    def worst_tail(self) -> float | None:
        return min((b.tail for b in self.bins if b.tail is not None), default=None)

    def kept(self, bin_tokens: int) -> float | None:
        """Attended over context tokens, with each bin's contexts taken at its middle where only bins are known."""
        if self.kept_fraction is not None:
            return self.kept_fraction
        known = [
            (b.tokens * (b.lo + bin_tokens / 2), b.kept_fraction) for b in self.bins if b.kept_fraction is not None
        ]
        total = sum(weight for weight, _ in known)
        return sum(weight * kept for weight, kept in known) / total if total else None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Acceptances of one configuration over all lengths."""

    label: str
    sketch: AcceptanceSketch


@dataclass(frozen=True, slots=True)
class StepSchedule:
    """Pages per length bin; None is dense."""

    label: str
    bin_tokens: int
    pages: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    step: int
    schedule: StepSchedule
    bins: tuple[TailBin, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A policy's observations, by step."""

    policy: str
    tau: float
    observations: tuple[Observation, ...]
    unit: str = "observation"
    """What one of them is: an observation of a replay, or a training step."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """What changes by step of a training run; NaN where a step does not have a value."""

    steps: tuple[int, ...]
    metrics: Mapping[str, np.ndarray]
    """Name to float64 ``[steps]``, names in the order in which they first appear."""
    worst_tail: np.ndarray
    """Lowest tail of any length bin with tokens, ``[steps]``."""
    kept: np.ndarray
    """Share of the context attended to, ``[steps]``."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run directory."""

    name: str
    kind: str
    model: str
    tau: float
    quantile: float | None
    bin_tokens: int
    bound: str
    """Which acceptance the tails are of, in words."""
    facts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    configurations: tuple[Configuration, ...] = ()
    is_grid: bool = False
    """The configurations are the budgets of a calibration."""
    histograms: tuple[Histogram, ...] = ()
    schedules: tuple[StepSchedule, ...] = ()
    scheduled: tuple[Configuration, ...] = ()
    """What the schedules meet, from the measured budgets."""
    loop: Loop | None = None
    training: Training | None = None
