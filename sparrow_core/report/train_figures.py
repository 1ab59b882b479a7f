"""Figures of training runs: headline curves, every metric by group, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparrow_core.report.data import Loop, Run, Training
from sparrow_core.report.figures import drawn_observations, legend_below, tau_lines
from sparrow_core.report.style import MUTED, TAU, new_figure, series_colors

MOST_POINTS = 300
"""Longer curves are drawn as means over equal runs of steps."""
_AROUND_TAU = LinearSegmentedColormap.from_list(
    "around tau", [(0, "#8f1d16"), (0.5, "#f2aaa2"), (0.5, "#a9cff2"), (1, "#1f5fa8")]
)
_TOTAL = "time/step_s"
_EVALUATION = "evaluate"
"""Happens between steps, so it is no part of the total."""
_HEADLINE = (
    ("reward/mean", "reward"),
    ("response/length_mean", "response\n(tokens)"),
)


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A run that is known to have trained."""

    name: str
    tau: float
    training: Training
    loop: Loop | None


def trained_runs(runs: Sequence[Run]) -> list[TrainedRun]:
    return [TrainedRun(run.name, run.tau, run.training, run.loop) for run in runs if run.training is not None]


def thinned(steps: Sequence[int], values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most ``MOST_POINTS`` points: each the mean of a run of steps without what is not finite, at its last step."""
    size = -(-len(steps) // MOST_POINTS)
    groups = [slice(start, start + size) for start in range(0, len(steps), size)]
    means = []
    for group in groups:
        known = values[group][np.isfinite(values[group])]
        means.append(known.mean() if len(known) else np.nan)
    return np.array([steps[group][-1] for group in groups]), np.array(means)


def headline(runs: Sequence[TrainedRun]) -> Figure:
    """Reward, response length, worst tail with tau, and share kept by step, one color per run."""
    rows: list[tuple[str, list[np.ndarray | None]]] = [
        (label, [run.training.metrics.get(name) for run in runs]) for name, label in _HEADLINE
    ]
    rows.append(("worst bin's\ntail", [run.training.worst_tail for run in runs]))
    rows.append(("context\nkept", [run.training.kept for run in runs]))
    shown = [(label, values) for label, values in rows if any(v is not None and np.isfinite(v).any() for v in values)]
    figure, _ = new_figure(height=0.5 + 1.35 * max(len(shown), 1), has_axis=False)
    axes = figure.subplots(max(len(shown), 1), 1, sharex=True, squeeze=False).flatten()
    for axis, (label, values) in zip(axes, shown, strict=False):
        _lines(axis, runs, values)
        axis.set_ylabel(label)
        if "tail" in label:
            tau_lines(axis, [run.tau for run in runs])
        if "kept" in label:
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _step_axis(axes[-1])
    legend_below(figure, list(axes))
    return figure


def tail_map(loop: Loop) -> Figure:
    """Tail by step and length bin as colors that turn at tau; nothing where a bin had no tokens."""
    observations = drawn_observations(loop)
    edges = _bin_edges(loop)
    tails_BS = np.full((len(edges) - 1, len(observations)), np.nan)
    for column, observation in enumerate(observations):
        for each in observation.bins:
            tails_BS[edges.index(each.lo), column] = np.nan if each.tail is None else each.tail
    figure, axis = new_figure()
    lowest = np.nanmin(tails_BS) if np.isfinite(tails_BS).any() else 0.0
    norm = TwoSlopeNorm(loop.tau, vmin=min(lowest, loop.tau - 0.01), vmax=1.0)
    steps = np.array([o.step for o in observations], float)
    bounds = np.concatenate([steps, [steps[-1] + (steps[-1] - steps[-2] if len(steps) > 1 else 1)]])
    mesh = axis.pcolormesh(bounds, edges, tails_BS, cmap=_AROUND_TAU, norm=norm, rasterized=True)
    bar = figure.colorbar(mesh, ax=axis, label=f"tail; tau = {loop.tau:g}")
    assert bar.solids is not None
    bar.solids.set_rasterized(True)
    bar.ax.axhline(loop.tau, color=TAU, linewidth=1.5, linestyle="--")
    axis.grid(visible=False)
    axis.set_ylabel("context length (tokens)")
    _step_axis(axis)
    return figure


def _bin_edges(loop: Loop) -> list[int]:
    """Lower edges of the bins that had tokens at any step, their gaps filled, and one upper edge."""
    width = loop.observations[0].schedule.bin_tokens
    starts = sorted({each.lo for o in loop.observations for each in o.bins})
    return list(range(starts[0], starts[-1] + 2 * width, width))


def group_panels(runs: Sequence[TrainedRun], names: Sequence[str]) -> Figure:
    """One small panel per metric, one line per run."""
    rows = -(-len(names) // 2)
    figure, _ = new_figure(height=0.5 + 1.7 * rows, has_axis=False)
    axes = figure.subplots(rows, min(2, len(names)), sharex=True, squeeze=False).flatten()
    for index, (axis, name) in enumerate(zip(axes, names, strict=False)):
        _lines(axis, runs, [run.training.metrics.get(name) for run in runs])
        axis.set_title(name.partition("/")[2] or name, fontsize="small")
        axis.tick_params(labelsize="small")
        axis.yaxis.set_major_locator(MaxNLocator(4))
        _step_axis(axis, is_lowest=index >= len(names) - 2)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    legend_below(figure, list(axes))
    return figure


def time_parts(training: Training) -> dict[str, np.ndarray]:
    """Seconds per step of every ``time/WHAT_s`` but the whole step's, and of the rest of the step as ``other``."""
    parts = {
        name.removeprefix("time/").removesuffix("_s"): np.nan_to_num(values, posinf=0, neginf=0)
        for name, values in training.metrics.items()
        if name.startswith("time/") and name.endswith("_s") and name != _TOTAL
    }
    if parts and _TOTAL in training.metrics:
        inside = np.sum([values for name, values in parts.items() if name != _EVALUATION], axis=0)
        parts["other"] = np.maximum(np.nan_to_num(training.metrics[_TOTAL]) - inside, 0)
    return parts


def time_split(run: TrainedRun) -> Figure:
    """Seconds of a step by what they went into, stacked."""
    figure, axis = new_figure()
    parts = {name: thinned(run.training.steps, values) for name, values in time_parts(run.training).items()}
    steps = next(iter(parts.values()))[0]
    colors = [MUTED if name == "other" else color for name, color in zip(parts, series_colors(len(parts)), strict=True)]
    if len(steps) == 1:
        steps = np.array([steps[0] - 0.5, steps[0] + 0.5])
        parts = {name: (steps, np.repeat(values, 2)) for name, (_, values) in parts.items()}
    axis.stackplot(steps, [values for _, values in parts.values()], labels=list(parts), colors=colors, alpha=0.8)
    axis.set_ylabel("seconds per step")
    axis.set_ylim(bottom=0)
    _step_axis(axis)
    legend_below(figure, [axis])
    return figure


def _lines(axis: Axes, runs: Sequence[TrainedRun], values: Sequence[np.ndarray | None]) -> None:
    for run, own, color in zip(runs, values, series_colors(len(runs)), strict=True):
        if own is None:
            continue
        steps, means = thinned(run.training.steps, own)
        known = np.isfinite(means)
        steps, means = steps[known], means[known]
        marker = "o" if len(steps) < 30 else ""
        axis.plot(steps, means, "-", marker=marker, markersize=2.5, color=color, linewidth=1.4, label=run.name)


def _step_axis(axis: Axes, *, is_lowest: bool = True) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if is_lowest:
        axis.set_xlabel("step")
        axis.tick_params(labelbottom=True)
