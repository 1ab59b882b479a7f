"""Rich tables of benchmark rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from sparrow_core.bench.decode import DecodeRow
from sparrow_core.bench.end_to_end import EndToEndRow
from sparrow_core.bench.kernels import OURS, KernelRow
from sparrow_core.bench.plan import GIB
from sparrow_core.bench.plan_views import PlanRow
from sparrow_core.bench.rollout import KINDS, RolloutRow
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


def rollout_table(rows: Sequence[RolloutRow]) -> Table:
    """Tokens per second, and the speedup beside the one that the floors allow."""
    title = "Rollouts from step times: tok/s (times the floor)"
    table = new_table(title, ["", "model", "batch, length", "schedule"])
    for name in ("dense", "sparse", "sparse is faster", "floors allow"):
        table.add_column(name, justify="right")
    for row in rows:
        case = row.case
        speeds = (f"{row.tokens_per_second(n):.0f} ({row.seconds[n] / row.floors[n]:.2f}x)" for n in KINDS)
        gains = (f"{row.speedup:.2f}x", f"{row.floor_speedup:.2f}x")
        table.add_row(row.kind, case.model, f"{case.batch}, {case.length}", case.schedule, *speeds, *gains)
    return table


def end_to_end_table(rows: Sequence[EndToEndRow]) -> Table:
    """Wall seconds of whole rollouts and how many times the integrated step time they are."""
    table = new_table("Rollouts end to end: seconds (times the integrated steps), tok/s", ["model", "batch, length"])
    for name in ("dense", "sparse", "sparse is faster"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = []
        for name in KINDS:
            seconds = row.seconds[name]
            ratio, speed = seconds / row.integrated_seconds[name], row.tokens / seconds
            cells.append(f"{seconds:.2f} ({ratio:.2f}x), {speed:.0f}")
        speedup = row.seconds[DENSE] / row.seconds[SPARSE]
        table.add_row(row.case.model, f"{row.case.batch}, {row.case.length}", *cells, f"{speedup:.2f}x")
    return table


def plan_table(rows: Sequence[PlanRow]) -> Table:
    """GiB by use; a checked plan shows its error against what was measured."""
    table = new_table("Memory plan: GiB", ["model"])
    for column in ("length", "batch", "weights", "KV pages", "landmarks", "records", "workspace", "total", "fits in"):
        table.add_column(column, justify="right")
    checked = any(row.check is not None for row in rows)
    for column in ("resident, planned over measured", "total") if checked else ():
        table.add_column(column, justify="right")
    for row in rows:
        plan = row.plan
        parts = (plan.weights, plan.kv, plan.landmarks, plan.records, plan.workspace, plan.total)
        cells = [row.model, str(plan.length), str(plan.batch), *(f"{part / GIB:.3f}" for part in parts)]
        cells.append(f"{row.memory / GIB:.2f}" if row.fits else f"[red]not in {row.memory / GIB:.2f}[/]")
        if row.check is not None:
            cells += [f"{row.check.resident_error:+.1%}", f"{row.check.total_error:+.1%}"]
        table.add_row(*cells)
    return table


def kernel_table(rows: Sequence[KernelRow]) -> Table:
    """Microseconds per call of one layer, ours and each competitor's."""
    table = new_table("One layer's kernels: us per call", ["case"])
    for name in ("floor", "ours", "times the floor", "TB/s", "competitors", "ours / best of them"):
        table.add_column(name, justify="right")
    for row in rows:
        ours = row.seconds[OURS]
        others = {name: seconds for name, seconds in row.seconds.items() if name != OURS}
        table.add_row(
            row.case.name,
            f"{row.floor * 1e6:.1f}",
            f"{ours * 1e6:.1f}",
            f"{ours / row.floor:.2f}x",
            f"{row.bytes / ours / 1e12:.2f}",
            ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in others.items()) or "-",
            f"{ours / min(others.values()):.3f}" if others else "-",
        )
    return table


def new_table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(name)
    return table


def _step(row: DecodeRow, name: str) -> str:
    return f"{row.seconds[name] * 1e3:.3f} ({row.ratio(name):.2f}x, {row.bandwidth(name) / 1e12:.2f})"
