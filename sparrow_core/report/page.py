"""The HTML page: everything inline, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from sparrow_core.report.data import Configuration, Run, TailBin
from sparrow_core.report.metric_table import metric_rows
from sparrow_core.report.sections import Plot, PlotSection
from sparrow_core.report.train_figures import TrainedRun, trained_runs
from sparrow_core.trace.trace_set import tool_version

_COLUMNS = ("run", "configuration", "context tokens", "tokens", "tail", "interval", "mean", "kept", "meets tau")


def page(runs: Sequence[Run], sections: Sequence[PlotSection], svgs: dict[str, str]) -> str:
    """The whole document; ``svgs`` holds each plot's element by its name."""
    trained = trained_runs(runs)
    names = ["Runs", *(section.heading for section in sections), "All numbers", *(["All metrics"] if trained else [])]
    links = "".join(f'<li><a href="#{_anchor(name)}">{escape(name)}</a></li>' for name in names)
    title = f"Sparrow report: {runs[0].name}" + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
    parts = [_runs(runs), *(_section(section, svgs) for section in sections), _table(runs), _metrics(trained)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#{_anchor("Runs")}">Skip to the report</a>
<header>
<div class="top"><h1>Sparrow report</h1><button id="theme" type="button" hidden>Light or dark</button></div>
<p class="soft">How far sparse attention moves the next-token distribution from the dense one, by context length.
Acceptance is 1 when both are the same; its lower tail should stay at tau or above.</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{"".join(parts)}</main>
<footer>Made by sparrow {escape(tool_version())}. This page needs nothing else; PNGs of its figures lie beside it.
</footer>
<script>
{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return files("sparrow_core.report").joinpath(name).read_text(encoding="utf-8")


def _anchor(heading: str) -> str:
    return "section-" + heading.lower().replace(" ", "-")


def _runs(runs: Sequence[Run]) -> str:
    cards = "".join(_card(run) for run in runs)
    anchor, body = _anchor("Runs"), f'<div class="grid">{cards}</div>'
    return f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">Runs</h2>{body}</section>\n'


def _card(run: Run) -> str:
    facts = [("kind", run.kind), *([("model", run.model)] if run.model else []), ("tau", f"{run.tau:g}")]
    if run.quantile is not None:
        facts.append(("tail", f"{run.quantile:.0%} quantile of the acceptance, {run.bound}"))
    facts += [("length bins", f"{run.bin_tokens:,} tokens"), *run.facts]
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in facts)
    warnings = "".join(f'<p class="warning">Warning: {escape(text)}</p>' for text in run.warnings)
    return f'<div class="card"><h3>{escape(run.name)}</h3><dl>{rows}</dl>{warnings}</div>'


def _section(section: PlotSection, svgs: dict[str, str]) -> str:
    anchor = _anchor(section.heading)
    if section.plots:
        body = f"<p>{escape(section.intro)}</p>"
        body += f'<div class="grid">{"".join(_figure(plot, svgs[plot.name]) for plot in section.plots)}</div>'
    else:
        body = f'<p class="missing">{escape(section.missing)}</p>'
    return f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(section.heading)}</h2>{body}</section>\n'


def _figure(plot: Plot, svg: str) -> str:
    caption = escape(plot.description)
    return f'<figure id="{plot.name}"><h3>{escape(plot.title)}</h3>{svg}<figcaption>{caption}</figcaption></figure>'


def _table(runs: Sequence[Run]) -> str:
    rows = "".join(
        _row(run, configuration, stats)
        for run in runs
        for configuration in (*run.scheduled, *run.configurations)
        for stats in configuration.bins
    )
    caption = "Every configuration by length bin. A column's heading sorts by it."
    return _table_section("All numbers", caption, _COLUMNS, rows)


def _metrics(runs: Sequence[TrainedRun]) -> str:
    caption = "Every metric of the training runs over their steps. A column's heading sorts by it."
    return _table_section("All metrics", caption, *metric_rows(runs)) if runs else ""


def _table_section(heading: str, caption: str, columns: Sequence[str], rows: str) -> str:
    anchor = _anchor(heading)
    head = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in columns)
    return f"""<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(heading)}</h2>
<div class="scroll" role="region" aria-labelledby="{anchor}" tabindex="0"><table>
<caption>{escape(caption)}</caption>
<thead><tr>{head}</tr></thead>
<tbody>{rows}</tbody>
</table></div></section>
"""


def _row(run: Run, configuration: Configuration, stats: TailBin) -> str:
    interval = "–" if stats.interval is None else f"{stats.interval[0]:.3f} to {stats.interval[1]:.3f}"
    verdict = "–" if stats.tail is None else '<span class="good">yes</span>'
    if stats.tail is not None and stats.tail < run.tau:
        verdict = '<span class="bad">no</span>'
    cells = [
        escape(run.name),
        escape(configuration.label),
        stats.span,
        f"{stats.tokens:,}",
        "–" if stats.tail is None else f"{stats.tail:.4f}",
        interval,
        "–" if stats.mean is None else f"{stats.mean:.4f}",
        "–" if stats.kept_fraction is None else f"{stats.kept_fraction:.1%}",
        verdict,
    ]
    sort = {1: configuration.pages, 2: stats.lo, 3: stats.tokens}
    return "<tr>" + "".join(_cell(cell, sort.get(index)) for index, cell in enumerate(cells)) + "</tr>"


def _cell(text: str, value: int | None) -> str:
    return f"<td>{text}</td>" if value is None else f'<td data-value="{value}">{text}</td>'
