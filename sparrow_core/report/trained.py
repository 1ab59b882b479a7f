"""A training run's directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sparrow_core.errors import InputError
from sparrow_core.report.data import Configuration, Loop, Observation, Run, StepSchedule, Training
from sparrow_core.report.distilled import read_acceptances
from sparrow_core.report.measured import has_exact, tail_bins
from sparrow_core.train_log import METRICS, BinRecord, RunInfo, StepRecord, read_info, read_records

_MOST_WARNINGS = 5
_KEPT = "mismatch/kept_fraction"


def read(directory: Path, name: str) -> Run:
    """Raises InputError when a file is damaged or no step has ended yet."""
    info = read_info(directory)
    records = read_records(directory / METRICS)
    if not records:
        raise InputError(f"{directory / METRICS} holds no step yet; report again when the first one has ended")
    last = records[-1]
    observations = tuple(_observation(record, info) for record in records if record.bins)
    return Run(
        name=name,
        kind="training run",
        model=info.model,
        tau=info.tau,
        quantile=info.quantile,
        bin_tokens=info.bin_tokens,
        bound="exact" if observations and has_exact(last.bins) else "lower bound",
        facts=_facts(info, records),
        warnings=_warnings(records),
        configurations=(Configuration(f"step {last.step}", tail_bins(last.bins)),) if last.bins else (),
        histograms=read_acceptances(directory, name),
        schedules=_schedules(observations),
        loop=Loop(info.policy, info.tau, observations, "step") if observations else None,
        training=_training(records, info),
    )


def _schedules(observations: Sequence[Observation]) -> tuple[StepSchedule, ...]:
    """The first step's, and the last one's where it differs."""
    ends = [observations[0].schedule, observations[-1].schedule] if observations else []
    return tuple(ends[:1] if ends and ends[0].pages == ends[1].pages else ends)


def _training(records: Sequence[StepRecord], info: RunInfo) -> Training:
    names = list(dict.fromkeys(name for record in records for name in record.metrics))
    metrics = {name: np.array([record.metrics.get(name, np.nan) for record in records], float) for name in names}
    steps = [Configuration("", tail_bins(record.bins)) for record in records]
    kept = np.array([step.kept(info.bin_tokens) for step in steps], float)
    return Training(
        tuple(record.step for record in records),
        metrics,
        np.array([step.worst_tail for step in steps], float),
        np.where(np.isnan(metrics[_KEPT]), kept, metrics[_KEPT]) if _KEPT in metrics else kept,
    )


def _observation(record: StepRecord, info: RunInfo) -> Observation:
    pages = tuple(_pages(each) for each in record.bins)
    width = record.bins[0].hi or info.bin_tokens
    return Observation(record.step, StepSchedule(f"step {record.step}", width, pages), tail_bins(record.bins))


def _pages(each: BinRecord) -> int | None:
    """The budget; None is dense. A policy that decides by sequence has the mean of what it decided."""
    if each.budget_pages is None:
        return None if each.pages_mean is None else round(each.pages_mean)
    return None if each.budget_pages == "dense" else each.budget_pages


def _facts(info: RunInfo, records: Sequence[StepRecord]) -> tuple[tuple[str, str], ...]:
    last = records[-1]
    facts = [("policy", info.policy)]
    if info.selector:
        facts.append(("selector", info.selector))
    if info.objective:
        facts.append(("objective", info.objective))
    facts.append(("steps", f"{records[0].step} to {last.step}"))
    facts.append(("policy version", str(last.policy_version)))
    if any(each.budget_pages is None for record in records for each in record.bins):
        facts.append(("budgets", "decided by sequence; shown are means of a bin"))
    return (*facts, *info.facts.items())


def _warnings(records: Sequence[StepRecord]) -> tuple[str, ...]:
    """Metrics that were not finite, with the steps where."""
    steps: dict[str, list[int]] = {}
    for record in records:
        for name in record.non_finite:
            steps.setdefault(name, []).append(record.step)
    found = [
        f"{name} was not finite at {len(at)} of {len(records)} steps, first at step {at[0]}"
        for name, at in steps.items()
    ]
    more = len(found) - _MOST_WARNINGS
    return tuple(found[:_MOST_WARNINGS]) + ((f"{more} more metrics were not finite",) if more > 0 else ())
