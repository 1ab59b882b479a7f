"""Measured tails by configuration and length bin, on disk: what ``cost_optimal`` starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparrow_core.errors import InputError


class TailEntry(BaseModel):
    """One configuration's tail in one bin."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    tokens: int = Field(ge=1)
    tail: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1)
    """Confidence interval of the tail."""
    high: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def interval_holds_the_tail(self) -> TailEntry:
        if not self.low <= self.tail <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold its tail {self.tail}; mend the row")
        return self


class TailRow(BaseModel):
    """One configuration over all bins; None where it has too few tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    selector: str
    page_size: int = Field(ge=1)
    pages: int = Field(ge=1)
    bins: tuple[TailEntry | None, ...]


class TailTable(BaseModel):
    """Every measured configuration of one model. Configurations are distinct and cover the same bins."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[1] = 1
    model: str = ""
    quantile: float = Field(gt=0, lt=1)
    bin_tokens: int = Field(ge=1)
    rows: tuple[TailRow, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def rows_are_distinct_and_equally_long(self) -> TailTable:
        keys = [(row.selector, row.page_size, row.pages) for row in self.rows]
        for index, (key, row) in enumerate(zip(keys, self.rows, strict=True)):
            if key in keys[:index]:
                raise ValueError(f"rows[{index}] repeats selector, page size and pages {key}; keep one")
            if len(row.bins) != self.num_bins:
                raise ValueError(f"rows[{index}] has {len(row.bins)} bins, rows[0] {self.num_bins}; give the same bins")
        return self

    @property
    def num_bins(self) -> int:
        return len(self.rows[0].bins)

    def write(self, path: str | Path) -> None:
        Path(path).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def read_tail_table(path: str | Path) -> TailTable:
    """Raises InputError when the file is missing or damaged."""
    try:
        return TailTable.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"tail table {str(path)!r} cannot be read: {error.strerror}; calibrate first") from error
    except ValidationError as error:
        raise InputError(f"tail table {str(path)!r} is not valid: {error}; calibrate anew") from error
