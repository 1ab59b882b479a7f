"""``sparrow report``: runs as one HTML page that works offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Output directories of measure, calibrate, replay or train.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file; PNGs go beside it.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one self-contained HTML page about measured runs, calibrations, closed loops and training runs."""
    from sparrow_core.cli.common import console
    from sparrow_core.report.report import write_report

    result = write_report(runs, output)
    console.print(f"{result.html} and {len(result.pngs)} PNGs beside it", markup=False)
    if result.missing:
        console.print(f"without data: {', '.join(result.missing)} (the page says which command makes it)", markup=False)
