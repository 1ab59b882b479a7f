"""The result files a report reads, as checked models. Unknown keys are left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparrow_core.errors import InputError

CALIBRATION = "calibration.json"
OBSERVATIONS = "observations.jsonl"
MEASURE = "measure.json"
TRACES = "traces.json"

Pages = list[int | Literal["dense"]]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class CalibrationBin(_File):
    lo: int
    hi: int | None
    tokens: int
    tail: float | None
    interval: tuple[float, float] | None
    mean: float | None
    kept_fraction: float | None


class CalibrationCell(_File):
    selector: str
    pages: int
    bins: tuple[CalibrationBin, ...]


class CalibrationSchedule(_File):
    pages: Pages = Field(min_length=1)
    total_cost: float


class CalibrationFile(_File):
    model: str
    tau: float
    quantile: float
    bin_tokens: int
    budgets: tuple[int, ...]
    best: str
    cells: tuple[CalibrationCell, ...] = Field(min_length=1)
    schedules: dict[str, CalibrationSchedule]
    warnings: tuple[str, ...] = ()


class StatsRow(_File):
    """``BinStats`` as JSON."""

    lo: int
    hi: int | None
    tokens: int
    mean: float | None
    tail_lower: float | None
    tail_exact: float | None = None
    tail_interval: tuple[float, float] | None
    kept_fraction: float | None


class NoiseRow(_File):
    min: float
    tokens: int


class MeasureFile(_File):
    model: str
    policy: str
    selector: str
    page_size: int
    tau: float
    quantile: float
    bins: tuple[StatsRow, ...]
    noise_floor: NoiseRow | None = None
    kept_fraction: float
    sequences: int
    generated_tokens: int
    config: dict[str, Any] = {}


class ObservedSchedule(_File):
    pages: Pages = Field(min_length=1)
    bin_tokens: int = Field(ge=1)


class ObservationRow(_File):
    step: int
    policy: str
    tau: float
    schedule: ObservedSchedule
    bins: tuple[StatsRow, ...]


FileModel = TypeVar("FileModel", bound=_File)


def read_json(path: Path, model: type[FileModel]) -> FileModel:
    """Raises InputError when the file cannot be read or is not what ``model`` says."""
    return _parse(_text(path), model, str(path))


def read_observations(path: Path) -> list[ObservationRow]:
    """Raises InputError naming the line that is damaged, or when there is none."""
    lines = [(number, line) for number, line in enumerate(_text(path).splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(f"{path} holds no observation; the run observed nothing yet")
    return [_parse(line, ObservationRow, f"line {number} of {path}") for number, line in lines]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _parse(text: str, model: type[FileModel], source: str) -> FileModel:
    try:
        return model.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the document"
        raise InputError(f"{source} is not what sparrow writes: {key}: {first['msg']}; make the run again") from error
    except ValueError as error:
        raise InputError(f"{source} is not whole JSON ({error}); make the run again") from error
