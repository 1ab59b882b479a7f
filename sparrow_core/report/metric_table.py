"""The table of every metric of the training runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from sparrow_core.report.train_figures import TrainedRun

_COLUMNS = ("run", "group", "metric", "first", "last", "mean of last tenth", "lowest", "highest")


def metric_rows(runs: Sequence[TrainedRun]) -> tuple[tuple[str, ...], str]:
    """Column names, and the rows as HTML. Statistics leave out what is not finite."""
    rows = [
        _row(run.name, name, values[np.isfinite(values)])
        for run in runs
        for name, values in run.training.metrics.items()
    ]
    return _COLUMNS, "".join(rows)


def _row(run: str, name: str, values: np.ndarray) -> str:
    group, _, metric = name.rpartition("/")
    cells = "".join(f"<td>{escape(text)}</td>" for text in (run, group or "–", metric))
    if not len(values):
        return f"<tr>{cells}{'<td>–</td>' * 5}</tr>"
    numbers = (values[0], values[-1], values[-max(len(values) // 10, 1) :].mean(), values.min(), values.max())
    cells += "".join(f'<td data-value="{number:.17g}">{number:.5g}</td>' for number in numbers)
    return f"<tr>{cells}</tr>"
