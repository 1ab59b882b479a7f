"""Write a report: the page, and a PNG of each of its figures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparrow_core.errors import InputError
from sparrow_core.report.distilled import distill_sections
from sparrow_core.report.page import page
from sparrow_core.report.runs import read_runs
from sparrow_core.report.sections import PlotSection, plot_sections
from sparrow_core.report.style import drawing, inline_svg, save_png
from sparrow_core.report.train_sections import train_sections


@dataclass(frozen=True, slots=True)
class Report:
    html: Path
    pngs: tuple[Path, ...]
    missing: tuple[str, ...]
    """Headings of the sections that have no data."""


def write_report(directories: Sequence[Path], output: Path) -> Report:
    """Read the runs and write ``output`` (``NAME.html``) and ``NAME-FIGURE.png`` beside it.

    Raises InputError when a directory holds no run, a file in it is damaged, or the output cannot be written.
    """
    if output.suffix != ".html":
        raise InputError(f"output={str(output)!r} must be a file name that ends in .html")
    runs = read_runs(directories)
    sections = [*train_sections(runs), *distill_sections(runs), *plot_sections(runs)]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        svgs, pngs = _render(sections, output)
        output.write_text(page(runs, sections, svgs), encoding="utf-8")
    except OSError as error:
        raise InputError(f"output={str(output)!r} cannot be written: {error}; give another path") from error
    return Report(output, tuple(pngs), tuple(section.heading for section in sections if not section.plots))


def _render(sections: Sequence[PlotSection], output: Path) -> tuple[dict[str, str], list[Path]]:
    svgs: dict[str, str] = {}
    pngs = []
    for plot in (plot for section in sections for plot in section.plots):
        with drawing(plot.name):
            figure = plot.draw()
            svgs[plot.name] = inline_svg(figure, plot.name, plot.title, plot.description)
            pngs.append(output.with_name(f"{output.stem}-{plot.name}.png"))
            save_png(figure, pngs[-1])
    return svgs, pngs
