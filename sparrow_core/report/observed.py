"""The observations of a policy: a closed loop's directory, or one of a replay's."""

from __future__ import annotations

from pathlib import Path

from sparrow_core.report.calibrated import pages_of
from sparrow_core.report.data import Configuration, Loop, Observation, Run, StepSchedule
from sparrow_core.report.files import OBSERVATIONS, ObservationRow, read_observations
from sparrow_core.report.measured import has_exact, tail_bins


def read(directory: Path, name: str) -> Run:
    """Raises InputError when a file is damaged."""
    rows = sorted(read_observations(directory / OBSERVATIONS), key=lambda row: row.step)
    last = rows[-1]
    loop = Loop(last.policy, last.tau, tuple(_observation(row) for row in rows))
    schedules = [_schedule(rows[0], f"step {rows[0].step}")]
    if rows[0].schedule != last.schedule:
        schedules.append(_schedule(last, f"step {last.step}"))
    return Run(
        name=name,
        kind="policy over time",
        model="",
        tau=last.tau,
        quantile=None,
        bin_tokens=_width(last),
        bound="exact" if has_exact(last.bins) else "lower bound",
        facts=(("policy", last.policy), ("observations", str(len(rows)))),
        configurations=(Configuration(f"step {last.step}", tail_bins(last.bins)),),
        schedules=tuple(schedules),
        loop=loop,
    )


def _observation(row: ObservationRow) -> Observation:
    return Observation(row.step, _schedule(row, row.policy), tail_bins(row.bins))


def _width(row: ObservationRow) -> int:
    """Tokens per bin of the observed stream, whose bins may be narrower than the schedule's."""
    return next((b.hi - b.lo for b in row.bins if b.hi is not None), row.schedule.bin_tokens)


def _schedule(row: ObservationRow, label: str) -> StepSchedule:
    return StepSchedule(label, row.schedule.bin_tokens, pages_of(row.schedule.pages))
