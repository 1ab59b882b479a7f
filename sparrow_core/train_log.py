"""The log of a training run on disk: ``training.json`` once, and one line of ``metrics.jsonl`` per RL step.

Trainers write it, reports read it. Every line is strict JSON. A metric that is NaN or infinite stands as ``null``
under ``metrics`` and as ``"nan"``, ``"inf"`` or ``"-inf"`` under ``non_finite``: neither lost nor taken for a number.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from sparrow_core.errors import InputError
from sparrow_core.mismatch.stream import MismatchStream
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule

METRICS = "metrics.jsonl"
INFO = "training.json"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What stays the same over a run and its report needs to know."""

    model: str
    policy: str
    """Name of the sparsity policy."""
    tau: float
    quantile: float
    """Of the mismatch stream: the tail is this quantile of the acceptance."""
    bin_tokens: int
    """Context tokens per length bin of the mismatch stream."""
    selector: str = ""
    objective: str = ""
    """Short name of the objective, for people."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Further names and values that the report's card shows."""


@dataclass(frozen=True, slots=True)
class BinRecord:
    """One length bin of one step. Statistics are None while the bin has no tokens (``BinStats``)."""

    lo: int
    hi: int | None
    tokens: int
    mean: float | None
    tail_lower: float | None
    tail_upper: float | None
    tail_exact: float | None
    tail_interval: tuple[float, float] | None
    pages_mean: float | None
    kept_fraction: float | None
    budget_pages: int | Literal["dense"] | None
    """The schedule's budget at ``lo``; None where the policy decides by sequence."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One RL step as it is logged.

    Raises InputError when the step is negative or a metric is no number.
    """

    step: int
    policy_version: int
    """Weight updates that the rollout's policy has had."""
    metrics: Mapping[str, float]
    """Flat; a name is ``group/what`` (docs/training-log.md lists those that reports draw)."""
    bins: tuple[BinRecord, ...] = ()

    def __post_init__(self) -> None:
        if self.step < 0 or self.policy_version < 0:
            raise InputError(f"step={self.step} and policy_version={self.policy_version} must be at least 0")
        for name, value in self.metrics.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InputError(f"metric {name!r} of step {self.step} is {value!r}; give a Python int or float")

    @property
    def non_finite(self) -> dict[str, str]:
        """Metrics that are not finite, as they are written: nan, inf or -inf."""
        return {name: str(float(value)) for name, value in self.metrics.items() if not math.isfinite(value)}

    def line(self) -> str:
        """One line of strict JSON, without its end."""
        non_finite = self.non_finite
        document: dict[str, Any] = {
            "step": self.step,
            "policy_version": self.policy_version,
            "metrics": {name: None if name in non_finite else value for name, value in self.metrics.items()},
        }
        if non_finite:
            document["non_finite"] = non_finite
        document["bins"] = [dataclasses.asdict(each) for each in self.bins]
        return json.dumps(document, allow_nan=False)


_INFO = TypeAdapter(RunInfo)
_RECORD = TypeAdapter(StepRecord)


def bin_records(stream: MismatchStream, schedule: BudgetSchedule | None) -> tuple[BinRecord, ...]:
    """Every bin of the stream (the empty ones too) with the schedule's budget at its shortest context.

    Args:
        schedule: what the rollout ran under; None for a policy that decides by sequence.
    """
    return tuple(
        BinRecord(
            lo=stats.lo,
            hi=stats.hi,
            tokens=stats.tokens,
            mean=stats.mean,
            tail_lower=stats.tail_lower,
            tail_upper=stats.tail_upper,
            tail_exact=stats.tail_exact,
            tail_interval=stats.tail_interval,
            pages_mean=stats.pages_mean,
            kept_fraction=stats.kept_fraction,
            budget_pages=None if schedule is None else _budget(schedule, stats.lo),
        )
        for stats in stream.bins()
    )


def _budget(schedule: BudgetSchedule, length: int) -> int | Literal["dense"]:
    pages = schedule.pages[min(length // schedule.bin_tokens, schedule.num_bins - 1)]
    return "dense" if pages == DENSE_PAGES else pages


def read_info(directory: Path) -> RunInfo:
    """Raises InputError when ``training.json`` is missing or not what a training run writes."""
    path = directory / INFO
    try:
        return _INFO.validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}; it lies beside {METRICS} of every training run") from error
    except ValidationError as error:
        raise InputError(f"{path} is not what sparrow writes: {_first(error)}; make the run again") from error


def write_info(directory: Path, info: RunInfo) -> None:
    """Write ``training.json``, whole or not at all."""
    replace_text(directory / INFO, json.dumps(dataclasses.asdict(info), indent=1, allow_nan=False) + "\n")


def read_records(path: Path) -> list[StepRecord]:
    """The whole lines of a ``metrics.jsonl``; a last line without its end is still being written and left out.

    Raises InputError naming the line that is damaged, or whose step is not above the one before.
    """
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    records: list[StepRecord] = []
    for number, line in enumerate(whole.splitlines(), 1):
        record = _record(line, f"line {number} of {path}")
        if records and record.step <= records[-1].step:
            raise InputError(
                f"line {number} of {path} has step {record.step} after step {records[-1].step}; steps must ascend: "
                "resume the run from its checkpoint, which puts its log in order"
            )
        records.append(record)
    return records


def _record(line: bytes, source: str) -> StepRecord:
    try:
        document = json.loads(line, parse_constant=_no_constant)
        metrics = {**document["metrics"], **{k: float(v) for k, v in document.get("non_finite", {}).items()}}
        return _RECORD.validate_python({**document, "metrics": metrics})
    except ValidationError as error:
        raise InputError(f"{source} is not what sparrow writes: {_first(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{source} is damaged: {type(error).__name__}: {error}") from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a kill at any moment leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".next")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
