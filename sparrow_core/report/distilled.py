"""What the report says about distillation: tail and KL with the adapter and without it, and their acceptances."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparrow_core.errors import InputError
from sparrow_core.mismatch import AcceptanceSketch, MismatchStream
from sparrow_core.mismatch.stream import Kind
from sparrow_core.report.data import Histogram, Run
from sparrow_core.report.figures import legend_below, tau_lines
from sparrow_core.report.sections import Plot, PlotSection
from sparrow_core.report.style import new_figure, series_colors
from sparrow_core.report.train_figures import TrainedRun, trained_runs

ACCEPTANCES = "acceptances.json"
"""State of a mismatch stream by name, over the same tokens: those of the last look without the adapter."""
_SERIES = (("with the adapter", "adapter_tail/", "distill/"), ("without it", "reference_tail/", "reference/"))
_KL = "forward_kl"


def distill_sections(runs: Sequence[Run]) -> list[PlotSection]:
    plots = list(_plots(trained_runs(runs)))
    intro = "The same tokens by the sparse policy with its adapter and without it; without it from time to time only."
    return [PlotSection("Distillation", intro, tuple(plots))] if plots else []


def read_acceptances(directory: Path, name: str) -> tuple[Histogram, ...]:
    """Acceptances over all lengths; none where the run left no file. Raises InputError when it is damaged."""
    path = directory / ACCEPTANCES
    if not path.exists():
        return ()
    try:
        streams = {
            label: MismatchStream.from_state_dict(state) for label, state in json.loads(path.read_text()).items()
        }
    except (ValueError, TypeError, AttributeError, InputError) as error:
        raise InputError(f"{path} is damaged ({error}); let the run write it again") from error
    return tuple(Histogram(f"{name}: {label}", _all_lengths(stream)) for label, stream in streams.items())


def _all_lengths(stream: MismatchStream) -> AcceptanceSketch:
    kinds: tuple[Kind, ...] = ("exact", "lower")
    exact, lower = (sum((stream.sketch(b, kind) for b in range(stream.num_bins)), AcceptanceSketch()) for kind in kinds)
    return exact if exact.count == stream.total else lower


def _plots(runs: Sequence[TrainedRun]) -> Iterator[Plot]:
    for number, run in enumerate(runs):
        metrics = run.training.metrics
        bins = sorted({name.partition("/")[2] for name in metrics if name.startswith(_SERIES[1][1])})
        bins = [each for each in bins if f"{_SERIES[0][1]}{each}" in metrics]
        if not bins:
            continue
        words = "; ".join(f"from {int(each):,} tokens {_last(run, each)}" for each in bins)
        yield Plot(
            f"distill-{number}",
            f"{run.name}: tail and KL with and without the adapter",
            f"Tail by step, one panel per length bin with tau = {run.tau:g}, and the forward KL from the dense policy. "
            f"At the last look with / without: {words}.",
            lambda run=run, bins=bins: with_and_without(run, bins),  # type: ignore[misc]
        )


def _last(run: TrainedRun, start: str) -> str:
    with_it, without = (run.training.metrics[f"{tail}{start}"] for _, tail, _ in _SERIES)
    both = np.flatnonzero(np.isfinite(with_it) & np.isfinite(without))
    return f"{with_it[both[-1]]:.3f} / {without[both[-1]]:.3f}" if len(both) else "not both known"


def with_and_without(run: TrainedRun, bins: Sequence[str]) -> Figure:
    """A panel per length bin, given by the digits of its shortest context, and one for the KL."""
    rows = len(bins) + 1
    figure, _ = new_figure(height=0.5 + 1.5 * rows, has_axis=False)
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False).flatten()
    for axis, start in zip(axes, bins, strict=False):
        _pair(axis, run, [f"{tail}{start}" for _, tail, _ in _SERIES])
        axis.set_ylabel(f"tail from\n{int(start):,}")
        tau_lines(axis, [run.tau])
    _pair(axes[-1], run, [f"{group}{_KL}" for _, _, group in _SERIES])
    axes[-1].set_ylabel("forward KL\n(nats)")
    axes[-1].set_xlabel("step")
    legend_below(figure, list(axes))
    return figure


def _pair(axis: Axes, run: TrainedRun, names: Sequence[str]) -> None:
    steps = np.array(run.training.steps)
    for (label, _, _), name, color in zip(_SERIES, names, series_colors(2), strict=True):
        values = run.training.metrics.get(name, np.full(len(steps), np.nan))
        known = np.isfinite(values)
        axis.plot(steps[known], values[known], "-o", markersize=2.5, linewidth=1.4, color=color, label=label)
