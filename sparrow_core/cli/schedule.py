"""``sparrow schedule``: look at schedules, compare two, check one against a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparrow_core.cli.rollout import Arguments

if TYPE_CHECKING:
    from sparrow_core.schedule_file import ScheduleFile

app = typer.Typer(help="Look at schedules, compare two, or check one against a configuration.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A schedule file, or the name of a published preset.", metavar="SCHEDULE")]


@app.command("show")
def show(schedule: Name) -> None:
    """Pages by context length, and where the schedule comes from."""
    from rich.table import Table

    from sparrow_core.cli.common import console

    file = read(schedule)
    table = Table(title=f"{schedule}: made for {file.model}, {file.selector}, page size {file.schedule.page_size}")
    for name in ("bin", "context tokens", "pages", "middle", "share of the context"):
        table.add_column(name, justify="right")
    reserved = file.schedule.sink_pages + file.schedule.recent_pages
    for index, pages in enumerate(file.schedule.pages):
        lo, hi = index * file.schedule.bin_tokens, (index + 1) * file.schedule.bin_tokens
        is_last = index == file.schedule.num_bins - 1
        share = min(1.0, pages * file.schedule.page_size / (lo + file.schedule.bin_tokens / 2))
        span = f"{lo}+" if is_last else f"{lo}-{hi - 1}"
        table.add_row(str(index), span, _count(pages), _count(pages, reserved), f"{share:.0%}")
    console.print(table)
    console.print(f"{file.schedule.sink_pages} sink and {file.schedule.recent_pages} recent pages are among them")
    for key, value in file.provenance.items():
        console.print(f"{key}: {value}", markup=False)


@app.command("diff")
def diff(first: Name, second: Name) -> None:
    """Where two schedules differ. Exit code 1 when they do."""
    from sparrow_core.cli.common import console

    one, two = read(first), read(second)
    lines = [
        f"{key}: {a} | {b}"
        for key, a, b in [("model", one.model, two.model), ("selector", one.selector, two.selector)]
        if a != b
    ]
    for key in ("page_size", "bin_tokens", "sink_pages", "recent_pages", "num_bins"):
        a, b = getattr(one.schedule, key), getattr(two.schedule, key)
        if a != b:
            lines.append(f"{key}: {a} | {b}")
    if one.schedule.bin_tokens == two.schedule.bin_tokens:
        pairs = enumerate(zip(one.schedule.pages, two.schedule.pages, strict=False))
        width = one.schedule.bin_tokens
        lines += [f"pages from {i * width} tokens: {_count(a)} | {_count(b)}" for i, (a, b) in pairs if a != b]
    for line in lines:
        console.print(line, markup=False)
    if lines:
        raise typer.Exit(1)
    console.print("the schedules are equal")


@app.command("check")
def check(schedule: Name, arguments: Arguments = None) -> None:
    """Refuse (exit code 2) a schedule made for another model, selector or page layout than the configuration's."""
    from sparrow_core.cli.common import console, split_arguments
    from sparrow_core.config import load_config
    from sparrow_core.model import model_name
    from sparrow_core.schedule_file import check_layout, check_origin

    path, overrides = split_arguments(arguments)
    config = load_config(path, overrides)
    file = read(schedule)
    check_layout(file.schedule, config.attention.layout, schedule)
    check_origin(file, model_name(config.model.source), config.attention.selector.type, schedule)
    console.print(f"{schedule} fits {model_name(config.model.source)} with {config.attention.selector.type}")


def read(schedule: str) -> ScheduleFile:
    """A schedule file, or a published preset by name."""
    from sparrow_core import registry
    from sparrow_core.contracts import SparseLayout
    from sparrow_core.schedule_file import ScheduleFile, read_schedule

    if Path(schedule).exists() or schedule.endswith(".json"):
        return read_schedule(schedule)
    policy_class = registry.load("sparrow.policies", "schedule")
    config = policy_class.Config.model_validate({"type": "schedule", "preset": schedule})
    policy = policy_class(config, SparseLayout())
    model, _, tau = schedule.rpartition("-")
    return ScheduleFile(policy.schedule(), model, "mean_landmark", {"source": "published preset", "tau": float(tau)})


def _count(pages: int, reserved: int = 0) -> str:
    from sparrow_core.schedule import DENSE_PAGES

    return "dense" if pages == DENSE_PAGES else str(pages - reserved)
