"""Rich tables of benchmark rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from sparrow_core.bench.decode import DecodeRow
from sparrow_core.bench.steps import DENSE, SPARSE, WITHOUT


def decode_table(rows: Sequence[DecodeRow]) -> Table:
    """Milliseconds, multiples of the floor and TB/s of each step, and the speedup."""
    table = new_table("Decode step: ms (times the floor, TB/s)", ["model", "batch, length, pages"])
    for name in ("dense", "sparse", "without attention", "sparse is faster", "floors allow"):
        table.add_column(name, justify="right")
    for row in rows:
        case = row.case
        table.add_row(
            case.model,
            f"{case.batch}, {case.length}, {case.pages}",
            *(_step(row, name) for name in (DENSE, SPARSE, WITHOUT)),
            f"{row.speedup:.2f}x",
            f"{row.floors[DENSE] / row.floors[SPARSE]:.2f}x",
        )
    return table


def new_table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(name)
    return table


def _step(row: DecodeRow, name: str) -> str:
    return f"{row.seconds[name] * 1e3:.3f} ({row.ratio(name):.2f}x, {row.bandwidth(name) / 1e12:.2f})"
