"""Rich tables of measurements."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from sparrow_core.measure.measure import Measurement
from sparrow_core.mismatch import BinStats


def bins_table(result: Measurement) -> Table:
    """One row per length bin of one measured rollout."""
    quantile = f"{result.config.mismatch.quantile:.0%}"
    table = Table(title=f"{result.traces.meta.model}, policy {result.config.policy.type}: acceptance by context length")
    table.add_column("context tokens")
    for name in ("tokens", "mean", f"{quantile} tail (lower)", "(upper)", "(exact)", "interval", "pages", "kept"):
        table.add_column(name, justify="right")
    for stats in result.bins:
        table.add_row(
            _span(stats),
            str(stats.tokens),
            _number(stats.mean),
            _tau(stats.tail_lower, result.config.mismatch.tau),
            _number(stats.tail_upper),
            _number(stats.tail_exact),
            "-" if stats.tail_interval is None else f"{stats.tail_interval[0]:.3f}-{stats.tail_interval[1]:.3f}",
            "-" if stats.pages_mean is None else f"{stats.pages_mean:.1f}",
            "-" if stats.kept_fraction is None else f"{stats.kept_fraction:.0%}",
        )
    return table


def comparison_table(results: Mapping[str, Measurement]) -> Table:
    """Tail and kept share by length bin, one pair of columns per run."""
    first = next(iter(results.values()))
    quantile = f"{first.config.mismatch.quantile:.0%}"
    exact = all(b.tail_exact is not None for result in results.values() for b in result.bins)
    kind = "acceptance" if exact else "acceptance (lower bound)"
    table = Table(title=f"{first.traces.meta.model}: {quantile} tail of {kind}, and share of tokens attended to")
    table.add_column("context tokens")
    for name in results:
        table.add_column(f"{name}\ntail", justify="right")
        table.add_column("\nkept", justify="right")
    by_run = {name: {b.lo: b for b in result.bins} for name, result in results.items()}
    for lo in sorted({lo for bins in by_run.values() for lo in bins}):
        cells, span = [], ""
        for name, result in results.items():
            stats = by_run[name].get(lo)
            span = _span(stats) if stats else span
            tail = None if stats is None else stats.tail_exact if exact else stats.tail_lower
            cells.append(_tau(tail, result.config.mismatch.tau))
            cells.append(f"{stats.kept_fraction:.0%}" if stats and stats.kept_fraction is not None else "-")
        table.add_row(span, *cells)
    return table


def _span(stats: BinStats) -> str:
    return f"{stats.lo}+" if stats.hi is None else f"{stats.lo}-{stats.hi - 1}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _tau(value: float | None, tau: float) -> str:
    if value is None:
        return "-"
    return f"[{'green' if value >= tau else 'red'}]{value:.4f}[/]"
