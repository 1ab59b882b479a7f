"""PNG plots of measurements: acceptance by position, and the tail by length bin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sparrow_core.measure.measure import Measurement
from sparrow_core.mismatch.stream import Kind

_MAX_POINTS = 20_000


def plot_acceptance(results: Mapping[str, Measurement], path: Path) -> None:
    """Acceptance of every token by context length, one panel per run (lower bound; exact where measured)."""
    figure = _figure(width=5 * len(results), height=3.6)
    axes = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axis, (name, result) in zip(axes, results.items(), strict=True):
        lengths, values = _tokens(result)
        axis.scatter(lengths, values, s=3, alpha=0.3, linewidths=0, color="tab:blue")
        axis.axhline(
            result.config.mismatch.tau, color="tab:red", linewidth=1, label=f"tau = {result.config.mismatch.tau}"
        )
        axis.set(title=name, xlabel="context length (tokens)", ylim=(-0.02, 1.02))
        axis.legend(loc="lower left")
    axes[0].set_ylabel("acceptance")
    _save(figure, path)


def plot_tail(results: Mapping[str, Measurement], path: Path) -> None:
    """Lower-tail quantile by length bin, one line per run, with its confidence interval."""
    figure = _figure(width=6.4, height=4.2)
    axis = figure.subplots()
    exact = all(b.tail_exact is not None for result in results.values() for b in result.bins)
    for name, result in results.items():
        bins = result.bins
        centers = [b.lo + result.stream.bin_tokens / 2 for b in bins]
        kind: Kind = "exact" if exact else "lower"
        tails = [b.tail_exact if exact else b.tail_lower for b in bins]
        line = axis.plot(centers, np.array(tails, dtype=float), marker="o", markersize=4, label=name)[0]
        sketches = [result.stream.sketch(b.lo // result.stream.bin_tokens, kind) for b in bins]
        intervals = [sketch.tail_confidence(result.stream.quantile) for sketch in sketches]
        low, high = zip(*intervals, strict=True)
        axis.fill_between(centers, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    first = next(iter(results.values()))
    tau, quantile = first.config.mismatch.tau, first.config.mismatch.quantile
    axis.axhline(tau, color="black", linewidth=1, linestyle="--", label=f"tau = {tau}")
    axis.set(
        xlabel="context length (tokens)",
        ylabel=f"{quantile:.0%} quantile of acceptance{'' if exact else ' (lower bound)'}",
    )
    axis.set_title(first.traces.meta.model)
    axis.legend(fontsize=8)
    _save(figure, path)


def _tokens(result: Measurement) -> tuple[np.ndarray, np.ndarray]:
    lengths, values = [], []
    for trace in result.traces.traces:
        assert trace.dense is not None
        exact = trace.dense.acceptance_exact
        lengths.append(trace.lengths.numpy())
        values.append((exact if exact is not None else trace.dense.acceptance_lower).numpy())
    all_lengths, all_values = np.concatenate(lengths), np.concatenate(values)
    step = -(-len(all_lengths) // _MAX_POINTS)
    return all_lengths[::step], all_values[::step]


def _figure(*, width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
