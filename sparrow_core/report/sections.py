"""What the report says, section by section; a section without data says which command makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from sparrow_core.report import figures
from sparrow_core.report.data import Loop, Run


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure with its words. ``draw`` is called once."""

    name: str
    """Distinct within the report; letters, digits and hyphens."""
    title: str
    description: str
    """What the figure shows, for those who cannot see it, and as its caption."""
    draw: Callable[[], Figure]


@dataclass(frozen=True, slots=True)
class PlotSection:
    heading: str
    intro: str
    plots: tuple[Plot, ...]
    missing: str = ""
    """Said instead of the figures when there are none."""


def plot_sections(runs: Sequence[Run]) -> list[PlotSection]:
    return [_tails(runs), _histograms(runs), _schedules(runs), _costs(runs), _loops(runs)]


def _tails(runs: Sequence[Run]) -> PlotSection:
    plots = list(_tail_plots(runs))
    intro = (
        "The tail is a low quantile of the per-token acceptance in one bin of context lengths. Shaded: its "
        "confidence interval. A budget is safe where its line stays above tau."
    )
    missing = "No tail was measured; sparrow measure and sparrow calibrate do so."
    return PlotSection("Tail by length", intro, tuple(plots), missing)


def _tail_plots(runs: Sequence[Run]) -> Iterator[Plot]:
    for number, run in enumerate(runs):
        if not run.is_grid:
            continue
        for selector in sorted({c.selector for c in run.configurations}):
            own = [c for c in run.configurations if c.selector == selector]
            yield Plot(
                f"tail-{number}-{_slug(selector)}",
                f"{run.name}: tail by length, {selector}",
                f"Tail of the acceptance ({run.bound}) by context length under {len(own)} page budgets of {run.model} "
                f"with the {selector} selector; {_reaching(run, selector)}.",
                lambda own=own, run=run: figures.tail_by_length(own, [run], is_grid=True),  # type: ignore[misc]
            )
    singles = [run for run in runs if not run.is_grid]
    named = [figures.named(run, c) for run in singles for c in run.configurations]
    bounds = ", ".join(sorted({run.bound for run in singles}))
    if any(c.worst_tail is not None for c in named):
        yield Plot(
            "tail-runs",
            "Tail by length of each run",
            f"Tail of the acceptance ({bounds}) by context length; worst bin: "
            + "; ".join(f"{c.label} {c.worst_tail:.3f}" for c in named if c.worst_tail is not None)
            + ".",
            lambda: figures.tail_by_length(named, singles, is_grid=False),
        )


def _reaching(run: Run, selector: str) -> str:
    good = [
        c.pages
        for c in run.configurations
        if c.selector == selector and c.pages is not None and c.worst_tail is not None and c.worst_tail >= run.tau
    ]
    if not good:
        return f"no single budget keeps every bin at tau = {run.tau:g}"
    return f"from {min(good)} pages on every measured bin is at tau = {run.tau:g} or above"


def _histograms(runs: Sequence[Run]) -> PlotSection:
    items = [item for run in runs for item in run.histograms]
    groups = [items[i : i + 4] for i in range(0, len(items), 4)]
    plots = [
        Plot(
            f"acceptance-{number}",
            "Acceptance below 0.999 and its Beta fit",
            " ".join(figures.histogram_caption(item) for item in group),
            lambda group=group: figures.histograms(group),  # type: ignore[misc]
        )
        for number, group in enumerate(groups)
    ]
    intro = (
        "Most tokens are all but unchanged by sparse attention (acceptance above 0.999) and are left out. The rest "
        "(bars) follow a Beta distribution scaled to [0, 0.999] (line); KS is the largest gap between its distribution "
        "function and the measured one."
    )
    missing = "No traces with dense scores are in these runs; sparrow measure and sparrow calibrate write them."
    return PlotSection("Acceptance histogram", intro, tuple(plots), missing)


def _schedules(runs: Sequence[Run]) -> PlotSection:
    items = [figures.named_schedule(run, s, many=len(runs) > 1) for run in runs for s in run.schedules]
    plot = Plot(
        "schedules",
        "Budget schedules",
        "Pages attended to by context length: "
        + "; ".join(f"{item.label} from {_pages(item.pages[0])} to {_pages(item.pages[-1])}" for item in items)
        + ".",
        lambda: figures.schedules(items),
    )
    intro = "Pages that a sequence attends to at each context length, sink and recent pages included."
    missing = "No schedule is in these runs; sparrow calibrate finds one, sparrow replay shows those of other policies."
    return PlotSection("Budget schedules", intro, (plot,) if items else (), missing)


def _costs(runs: Sequence[Run]) -> PlotSection:
    plot = Plot(
        "cost-tail",
        "Cost against tail",
        "Share of the context that sparse layers attend to, against the tail of the worst length bin. Numbers are "
        "pages. Joined points are not beaten in both by any other.",
        lambda: figures.cost_against_tail(runs),
    )
    intro = (
        "Left is cheaper, up is closer to dense attention. The cheapest safe choice is the leftmost point above tau."
    )
    missing = "No run has both a kept fraction and a tail; sparrow measure and sparrow calibrate give them."
    return PlotSection("Cost against tail", intro, (plot,) if figures.has_points(runs) else (), missing)


def _loops(runs: Sequence[Run]) -> PlotSection:
    plots = [
        Plot(
            f"loop-{number}",
            f"{run.name}: budgets over time",
            f"Pages per length bin (above) and tail (below) over {len(run.loop.observations)} {run.loop.unit}s of "
            f"{run.loop.policy}, tau = {run.loop.tau:g}.{apart_words(run.loop)}",
            lambda loop=run.loop: figures.budgets_over_time(loop),  # type: ignore[misc]
        )
        for number, run in enumerate(runs)
        if run.loop is not None
    ]
    intro = "What a policy chose from one rollout to the next, and the tail it met. Dense bins have no line."
    missing = (
        "Neither a training run nor an observations.jsonl is among these runs; sparrow train, a closed-loop run and "
        "sparrow replay leave them."
    )
    return PlotSection("Budgets over time", intro, tuple(plots), missing)


def apart_words(loop: Loop) -> str:
    apart = figures.observations_apart(loop)
    return f" Of every {apart} {loop.unit}s one is drawn." if apart > 1 else ""


def _pages(pages: int | None) -> str:
    return "dense" if pages is None else f"{pages} pages"


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text)
