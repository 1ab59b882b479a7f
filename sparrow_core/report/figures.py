"""The report's figures, each drawn once for the page and for its PNG. Budgets and lengths are in pages and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import stats

from sparrow_core.mismatch import TAIL_LIMIT, fit_tail_beta
from sparrow_core.report.data import Configuration, Histogram, Loop, Observation, Run, StepSchedule
from sparrow_core.report.style import MUTED, TAU, new_figure, series_colors

_HISTOGRAM_BINS = 40
MOST_OBSERVATIONS = 300
"""Of a longer loop every second, third, ... observation is drawn."""
_MARKED = 60
"""Most observations that are drawn as points too."""
_LONG_LABEL = 30
"""Characters above which a legend has one column; above half of it, two."""
_LEGEND_ROW = 0.19
"""Inches."""


def tail_by_length(configurations: Sequence[Configuration], runs: Sequence[Run], *, is_grid: bool) -> Figure:
    """One line per configuration with its interval; tau dashed."""
    figure, axis = new_figure()
    colors = series_colors(len(configurations), is_ordered=is_grid)
    width = max(run.bin_tokens for run in runs)
    for configuration, color in zip(configurations, colors, strict=True):
        bins = [b for b in configuration.bins if b.tail is not None]
        if not bins:
            continue
        centers = [b.lo + (width if b.hi is None else b.hi - b.lo) / 2 for b in bins]
        axis.plot(centers, [b.tail or 0 for b in bins], "o-", color=color, markersize=3.5, label=configuration.label)
        low, high = zip(*(b.interval or (np.nan, np.nan) for b in bins), strict=True)
        axis.fill_between(centers, low, high, color=color, alpha=0.14, linewidth=0)
    tau_lines(axis, [run.tau for run in runs])
    axis.set_xlabel("context length (tokens)")
    axis.set_ylabel(f"{_quantile(runs)} tail of acceptance")
    _legend(axis)
    return figure


def named(run: Run, configuration: Configuration) -> Configuration:
    """The configuration with its run's name in the label."""
    return replace(configuration, label=f"{run.name}: {configuration.label}")


def named_schedule(run: Run, schedule: StepSchedule, *, many: bool) -> StepSchedule:
    return replace(schedule, label=f"{run.name}: {schedule.label}") if many else schedule


def histograms(items: Sequence[Histogram]) -> Figure:
    """Acceptances up to 0.999 as a density, with the scaled Beta distribution fitted to them."""
    rows = -(-len(items) // 2)
    figure, _ = new_figure(height=0.4 + 2.5 * rows, has_axis=False)
    axes = figure.subplots(rows, min(2, len(items)), squeeze=False).flatten()
    for axis, item in zip(axes, items, strict=False):
        _histogram(axis, item)
    for axis in axes[len(items) :]:
        axis.set_visible(False)
    figure.supxlabel("acceptance, tokens up to 0.999", fontsize="medium")
    return figure


def histogram_caption(item: Histogram) -> str:
    """The fit in words."""
    fit = fit_tail_beta(item.sketch)
    share = 1 - item.sketch.fraction_above_0999
    start = f"{item.label}: {share:.1%} of {item.sketch.count:,} tokens are at or below 0.999"
    if fit is None:
        return f"{start}, too few or too alike for a fit."
    return (
        f"{start}; Beta({fit.alpha:.3g}, {fit.beta:.3g}) on [0, 0.999], variance {fit.variance:.3f}, "
        f"KS distance {fit.ks:.3f}."
    )


def _histogram(axis: Axes, item: Histogram) -> None:
    edges, counts = item.sketch.tail_counts()
    centers = (edges[:-1] + edges[1:]) / 2
    fit = fit_tail_beta(item.sketch)
    axis.set_title(item.label if len(item.label) < 34 else f"{item.label[:32]}…", fontsize="small")
    axis.set_yticks([])
    axis.set_xlim(0, 1)
    if not counts.sum():
        axis.text(0.5, 0.5, "every token is above 0.999", ha="center", va="center", fontsize="small", color=MUTED)
        return
    color = series_colors(2)
    density, walls, _ = axis.hist(
        centers, bins=np.linspace(0, TAIL_LIMIT, _HISTOGRAM_BINS + 1).tolist(), weights=counts, density=True,
        color=color[0], alpha=0.55,
    )  # fmt: skip
    top = float(np.max(np.asarray(density)))
    axis.set_ylim(0, 1.25 * top)
    if fit is not None:
        x = np.linspace(walls[0], TAIL_LIMIT, 400)[1:-1]
        pdf = stats.beta.pdf(x / fit.scale, fit.alpha, fit.beta) / fit.scale
        axis.plot(x, pdf, color=color[1], linewidth=1.8)
        axis.text(0.04, 0.93, f"KS {fit.ks:.3f}", transform=axis.transAxes, va="top", fontsize="small")


def schedules(items: Sequence[StepSchedule]) -> Figure:
    """Pages by context length as steps; the last bin is open-ended. Dense bins lie at the top edge."""
    figure, axis = new_figure()
    top = max([p for item in items for p in item.pages if p is not None], default=1)
    longest = max(len(item.pages) * item.bin_tokens for item in items)
    for item, color in zip(items, series_colors(len(items)), strict=True):
        values = [top * 1.15 if p is None else p for p in item.pages]
        edges = [i * item.bin_tokens for i in range(len(values))] + [max(longest, len(values) * item.bin_tokens)]
        axis.stairs(values, edges, baseline=None, color=color, linewidth=2, label=item.label)
    if any(p is None for item in items for p in item.pages):
        axis.axhline(top * 1.15, color=MUTED, linewidth=0.8, linestyle=":")
        axis.annotate("dense", (0, top * 1.15), textcoords="offset points", xytext=(2, 3), fontsize="small")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("context length (tokens)")
    axis.set_ylabel("pages")
    _legend(axis)
    return figure


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (kept, tail) that no other beats in both, by ascending kept."""
    front: list[int] = []
    best = -np.inf
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if points[index][1] > best:
            front.append(index)
            best = points[index][1]
    return front


def cost_against_tail(runs: Sequence[Run]) -> Figure:
    """Share of the context attended to against the worst bin's tail, with the points that none beats joined."""
    figure, axis = new_figure()
    points: list[tuple[float, float]] = []
    groups = [(f"{run.name}: {name}", items) for run in runs for name, items in _groups(run)]
    for (label, items), color in zip(groups, series_colors(len(groups)), strict=True):
        own = [(kept, tail) for c, kept, tail in items]
        points += own
        marker = "D" if "schedule" in label else "o"
        axis.plot(*zip(*own, strict=True), marker, color=color, markersize=6, alpha=0.85, label=label)
        for c, kept, tail in items:
            if c.pages is not None:
                axis.annotate(str(c.pages), (kept, tail), textcoords="offset points", xytext=(5, -9), fontsize=7.5)
    front = [points[index] for index in pareto_front(points)]
    axis.plot(*zip(*front, strict=True), "-", color=MUTED, linewidth=1.3, zorder=0, label="Pareto front")
    tau_lines(axis, [run.tau for run in runs])
    axis.set_xlabel("context attended to in sparse layers")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.set_ylabel("tail of the worst bin")
    _legend(axis)
    return figure


_Point = tuple[Configuration, float, float]


def _groups(run: Run) -> list[tuple[str, list[_Point]]]:
    """A run's configurations that have both kept fraction and tail, by what they share a color with."""
    named: dict[str, list[_Point]] = {}
    for configuration in (*run.configurations, *run.scheduled):
        kept, tail = configuration.kept(run.bin_tokens), configuration.worst_tail
        if kept is not None and tail is not None:
            is_budget = run.is_grid and configuration in run.configurations
            name = f"{configuration.selector} budgets" if is_budget else configuration.label
            named.setdefault(name, []).append((configuration, kept, tail))
    return list(named.items())


def has_points(runs: Sequence[Run]) -> bool:
    return any(_groups(run) for run in runs)


def budgets_over_time(loop: Loop) -> Figure:
    """Pages above, tail below, by observation; one line per length bin that was observed."""
    figure, _ = new_figure(height=4.8, has_axis=False)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    observations = drawn_observations(loop)
    spans = {b.lo: b.span for o in observations for b in o.bins}
    steps = [o.step for o in observations]
    style = ".-" if len(steps) <= _MARKED else "-"
    for lo, color in zip(sorted(spans), series_colors(len(spans), is_ordered=True), strict=True):
        pages = [_pages_at(o.schedule, lo) for o in observations]
        upper.plot(steps, pages, style, color=color, drawstyle="steps-post", label=spans[lo])
        tails = [next((b.tail for b in o.bins if b.lo == lo), None) for o in observations]
        lower.plot(steps, [np.nan if t is None else t for t in tails], style, color=color)
    tau_lines(lower, [loop.tau])
    upper.set_ylabel("pages")
    upper.set_ylim(bottom=0)
    lower.set_ylabel("tail")
    lower.set_xlabel(loop.unit)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    upper.yaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(upper, title="context tokens")
    return figure


def drawn_observations(loop: Loop) -> tuple[Observation, ...]:
    return loop.observations[:: observations_apart(loop)]


def observations_apart(loop: Loop) -> int:
    """1 where every observation is drawn, k where every k-th is."""
    return -(-len(loop.observations) // MOST_OBSERVATIONS)


def _pages_at(schedule: StepSchedule, length: int) -> float:
    pages = schedule.pages[min(length // schedule.bin_tokens, len(schedule.pages) - 1)]
    return np.nan if pages is None else float(pages)


def tau_lines(axis: Axes, taus: Sequence[float]) -> None:
    for tau in sorted(set(taus)):
        axis.axhline(tau, color=TAU, linewidth=1.2, linestyle="--", label=f"tau = {tau:g}")


def _quantile(runs: Sequence[Run]) -> str:
    known = sorted({run.quantile for run in runs if run.quantile is not None})
    return "/".join(f"{q:.0%}" for q in known)


def _legend(axis: Axes, title: str | None = None) -> None:
    """Below the axes, where it hides no line; the figure grows by its rows."""
    figure = axis.figure.get_figure(root=True)
    assert isinstance(figure, Figure)
    legend_below(figure, [axis], title)


def legend_below(figure: Figure, axes: Sequence[Axes], title: str | None = None) -> None:
    """One legend of what the axes name, below them; the figure grows by its rows."""
    named = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    longest = max(map(len, named), default=0)
    columns = 1 if longest > _LONG_LABEL else 2 if longest > _LONG_LABEL / 2 else 4
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * (-(-len(named) // columns) + bool(title)))
    figure.legend(
        list(named.values()), list(named), loc="outside lower center", ncols=columns, title=title, frameon=False,
        fontsize="small", title_fontsize="small",
    )  # fmt: skip
