"""Measured cost of a decode step: a small non-negative model fitted to timed steps.

    seconds = c0 + c1 B + c2 sum(n) + c3 sum(a(n, p)) + c4 sum(landmarks scanned)

B sequences of length n; a(n, p) tokens attended under p pages. c0 is what a step costs however small it is (weight
reads, launches), c1 a sequence's own share, c2 what grows with the whole context whatever the budget (the dense
layers), c3 the sparse layers' attention, c4 scoring and selection. Relative errors are minimised, so that short
steps count as much as long ones. A negative time per unit has no meaning, hence non-negative least squares.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError
from scipy.optimize import nnls

from sparrow_core.contracts import CostModel, PluginConfig, SparseLayout
from sparrow_core.errors import InputError

TERMS = ("step", "sequence", "context_token", "attended_token", "scanned_landmark")
"""What the five coefficients count, in order."""


class MeasuredRow(BaseModel):
    """One timed step: ``batch`` sequences, all of ``length`` tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    batch: PositiveInt
    length: PositiveInt
    pages: PositiveInt | None
    """Page budget; None for dense attention in every layer."""
    seconds: PositiveFloat


class MeasuredTable(BaseModel):
    """A file of timed steps of one model on one machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    page_size: PositiveInt
    rows: tuple[MeasuredRow, ...]
    device: str = ""
    model: str = ""
    dtype: str = ""
    selector: str = ""


class MeasuredConfig(PluginConfig):
    """The tables to choose from, one for each page size."""

    type: str = "measured"
    paths: tuple[Path, ...] = ()
    """Files written by ``save_measured``."""
    tables: tuple[MeasuredTable, ...] = ()
    extrapolation: float = Field(default=1.25, ge=1.0)
    """Refuse batches, lengths and attended tokens beyond the table's largest by more than this factor."""


class MeasuredCost(CostModel):
    """Seconds of a decode step, as timed on the user's machine."""

    Config: ClassVar[type[PluginConfig]] = MeasuredConfig
    unit: ClassVar[Literal["seconds", "eFLOP"]] = "seconds"

    def __init__(self, config: PluginConfig, layout: SparseLayout, landmark_vectors: int = 1) -> None:
        super().__init__(config, layout, landmark_vectors)
        self.settings = cast(MeasuredConfig, config)
        self.table = _table_for(self.settings, layout.page_size)
        features, seconds = _design(self.table)
        relative = features / seconds[:, None]
        # Columns differ by orders of magnitude, which the solver's tolerance does not forgive.
        scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
        solution, _ = nnls(relative / scale, np.ones(len(seconds)))
        self.coefficients: NDArray[np.float64] = solution / scale
        errors = np.abs(features @ self.coefficients / seconds - 1)
        self.mean_relative_error = float(errors.mean())
        self.max_relative_error = float(errors.max())

    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        """Seconds of one decode step. Raises InputError beyond the table (``extrapolation``)."""
        if lengths_B.shape != pages_B.shape or lengths_B.ndim != 1:
            raise InputError(
                f"step_cost needs lengths and pages of one shape [B], not {list(lengths_B.shape)} "
                f"and {list(pages_B.shape)}"
            )
        n = lengths_B.cpu().numpy().astype(np.int64)
        features = _features(n, pages_B.cpu().numpy().astype(np.int64), self.table.page_size)
        self._refuse_extrapolation(n, features)
        return float(features @ self.coefficients)

    def describe(self) -> str:
        """The fitted terms and the fit's error, in one line."""
        terms = ", ".join(f"{c * 1e6:.4g} us/{name}" for c, name in zip(self.coefficients, TERMS, strict=True))
        return (
            f"{terms}; {len(self.table.rows)} steps, relative error mean {self.mean_relative_error:.1%}, "
            f"max {self.max_relative_error:.1%}"
        )

    def _refuse_extrapolation(self, n: NDArray[np.int64], features: NDArray[np.float64]) -> None:
        rows, factor = self.table.rows, self.settings.extrapolation
        batches = [row.batch for row in rows]
        attended = max(_row_features(row, self.table.page_size)[3] / row.batch for row in rows)
        batch = int((n > 0).sum())
        limits = [
            ("length", float(n.max(initial=0)), float(max(row.length for row in rows))),
            ("batch", float(batch), float(max(batches))),
            ("attended tokens per sequence", features[3] / max(batch, 1), attended),
        ]
        for name, value, largest in limits:
            if value > largest * factor:
                raise InputError(
                    f"cost {name}={value:.0f} lies beyond the measured table's {largest:.0f} by more than a factor of "
                    f"{factor}; measure steps at that size or use the analytic cost model"
                )
        if 0 < batch < min(batches) / factor:
            raise InputError(
                f"cost batch={batch} lies below the measured table's {min(batches)} by more than a factor of {factor}; "
                "measure steps at that batch"
            )


def fit_measured(
    rows: Iterable[MeasuredRow],
    layout: SparseLayout | None = None,
    *,
    extrapolation: float = 1.25,
    device: str = "",
    model: str = "",
    dtype: str = "",
    selector: str = "",
) -> MeasuredCost:
    """A cost model from timed steps taken with ``layout`` (the default layout when None).

    Raises InputError when there are too few rows, or no two lengths or budgets to tell the terms apart.
    """
    layout = layout or SparseLayout()
    table = MeasuredTable(
        page_size=layout.page_size, rows=tuple(rows), device=device, model=model, dtype=dtype, selector=selector
    )
    return MeasuredCost(MeasuredConfig(tables=(table,), extrapolation=extrapolation), layout)


def save_measured(cost: MeasuredCost, path: Path) -> None:
    """Write the timed steps, which are all the fit depends on."""
    path.write_text(cost.table.model_dump_json(indent=1) + "\n")


def load_measured(path: Path, layout: SparseLayout | None = None) -> MeasuredCost:
    """The cost model of a file written by ``save_measured``; ``layout`` must have the table's page size."""
    return MeasuredCost(MeasuredConfig(paths=(path,)), layout or SparseLayout())


def _table_for(settings: MeasuredConfig, page_size: int) -> MeasuredTable:
    tables = [*settings.tables, *map(_read_table, settings.paths)]
    if not tables:
        raise InputError("cost paths is empty; give the file of a measured cost table")
    matching = [table for table in tables if table.page_size == page_size]
    if len(matching) != 1:
        sizes = ", ".join(str(table.page_size) for table in tables)
        raise InputError(
            f"cost tables measure page sizes {sizes}, but exactly one with page size {page_size} is needed; "
            f"measure with page size {page_size} or use the analytic cost model"
        )
    _check_rows(matching[0])
    return matching[0]


def _read_table(path: Path) -> MeasuredTable:
    try:
        return MeasuredTable.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cost table {path} cannot be read: {error.strerror}; measure one first") from error
    except ValidationError as error:
        raise InputError(f"cost table {path} is not valid: {error}; measure it anew") from error


def _check_rows(table: MeasuredTable) -> None:
    rows = table.rows
    if len(rows) < len(TERMS):
        raise InputError(f"cost table has {len(rows)} rows; time at least {len(TERMS)} steps")
    if len({row.length for row in rows}) < 2 or len({row.pages for row in rows}) < 2:
        raise InputError(
            "cost table needs at least two lengths and two budgets (dense counts as one) to tell its terms apart"
        )


def _design(table: MeasuredTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    features = np.stack([_row_features(row, table.page_size) for row in table.rows])
    return features, np.array([row.seconds for row in table.rows])


def _row_features(row: MeasuredRow, page_size: int) -> NDArray[np.float64]:
    pages = -(-row.length // page_size) if row.pages is None else row.pages
    one = _features(np.array([row.length]), np.array([pages]), page_size) * row.batch
    one[0] = 1.0
    return one


def _features(n: NDArray[np.int64], pages: NDArray[np.int64], page_size: int) -> NDArray[np.float64]:
    """The five terms of one step, ``[5]``; rows of length 0 are empty."""
    left_out = np.maximum(-(-n // page_size) - pages, 0)
    attended = n - left_out * page_size
    scanned = np.where(left_out > 0, n // page_size, 0)
    return np.array([1.0, (n > 0).sum(), n.sum(), attended.sum(), scanned.sum()], dtype=np.float64)
