"""``sparrow calibrate``: from a model and prompts to the cheapest schedule that keeps the tail above tau."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sparrow_core.cli.rollout import Arguments, JsonFile, Quiet

if TYPE_CHECKING:
    from rich.table import Table

    from sparrow_core.calibrate.calibrate import Calibration


def calibrate(arguments: Arguments = None, json_file: JsonFile = None, quiet: Quiet = False) -> None:
    """Measure the tail of every budget by context length and write the cheapest schedule that meets tau.

    Interrupt it at any point: the same command goes on where it stopped.
    Example: sparrow calibrate mismatch.tau=0.86 calibrate.selectors=[mean_landmark,quest] output=runs/calibrate
    """
    from sparrow_core.calibrate.calibrate import calibrate as run_calibration
    from sparrow_core.calibrate.config import CalibrateConfig
    from sparrow_core.calibrate.files import (
        CALIBRATION_FILE,
        SCHEDULE_FILE,
        TAILS_FILE,
        calibration_json,
        schedule_of,
        tail_table,
    )
    from sparrow_core.cli.common import console, error_console, progress_display, split_arguments
    from sparrow_core.cli.rollout import load_inputs
    from sparrow_core.config import load_as
    from sparrow_core.schedule_file import write_schedule

    path, overrides = split_arguments(arguments)
    config = load_as(CalibrateConfig, path, overrides)
    model, prompts = load_inputs(config, needs_room=config.calibrate.text_prefix is None)
    result = run_calibration(config, model, prompts, progress_display(quiet))
    output = Path(config.output)
    text = json.dumps(calibration_json(result, model.name), indent=1) + "\n"
    for target in filter(None, (output / CALIBRATION_FILE, json_file)):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    write_schedule(output / SCHEDULE_FILE, schedule_of(result, model.name))
    tail_table(result, model.name).write(output / TAILS_FILE)
    for selector in result.searches:
        console.print(_table(result, selector))
    console.print(
        f"{result.best}: pages per bin {list(result.searches[result.best].pages)}; run with "
        f"policy='{{type: schedule, file: {output / SCHEDULE_FILE}}}'",
        markup=False,
    )
    for warning in result.warnings:
        error_console.print(f"[yellow]warning:[/] {warning}")


def _table(result: Calibration, selector: str) -> Table:
    from rich.table import Table

    tau, width = result.config.mismatch.tau, result.config.mismatch.bin_tokens
    cells = [cell for cell in result.cells if cell.selector == selector]
    search = result.searches[selector]
    table = Table(title=f"{selector}: {result.config.mismatch.quantile:.0%} tail of acceptance by budget and length")
    table.add_column("pages", justify="right")
    for index, stats in enumerate(cells[0].bins):
        table.add_column(f"{index * width}+\n{stats.tokens} tokens", justify="right")
    for cell in cells:
        row = []
        for index, stats in enumerate(cell.bins):
            chosen = search.choices[index].candidate.pages == cell.pages
            value = "-" if stats.tail is None else f"{stats.tail:.3f}"
            color = "dim" if stats.tail is None else "green" if stats.tail >= tau else "red"
            row.append(f"[{color}]{value}[/]{' *' if chosen else ''}")
        table.add_row(str(cell.pages), *row)
    table.caption = "* chosen for this length"
    return table
