"""``sparrow cost``: time decode steps on this machine and fit the measured cost model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sparrow_core.cli.rollout import Arguments, Quiet

app = typer.Typer(help="Cost of a decode step, measured on this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps ``measure`` a subcommand while it is the only one."""


@app.command("measure")
def measure(
    arguments: Arguments = None,
    batches: Annotated[str, typer.Option(help="Sequences per step, separated by commas.")] = "1,4,8",
    lengths: Annotated[str, typer.Option(help="Context lengths in tokens.")] = "256,1024,4096",
    budgets: Annotated[str, typer.Option(help="Page budgets; dense is always timed.")] = "8,16,32,64",
    repeats: Annotated[int, typer.Option(help="Timed steps per row; the median counts.")] = 5,
    output: Annotated[Path, typer.Option("--output", "-o", help="The table, a JSON file.")] = Path("cost.json"),
    quiet: Quiet = False,
) -> None:
    """Time decode steps by batch, length and budget, fit the cost model and report the fit's error."""
    from sparrow_core import registry
    from sparrow_core.cli.common import console, progress_display, split_arguments
    from sparrow_core.config import load_config
    from sparrow_core.measure.step_time import num_rows, time_steps
    from sparrow_core.model import load_model, resolve_device, resolve_dtype

    path, overrides = split_arguments(arguments)
    config = load_config(path, overrides)
    grid: dict[str, list[int]] = {
        "batches": _numbers("batches", batches),
        "lengths": _numbers("lengths", lengths),
        "budgets": _numbers("budgets", budgets),
    }
    model = load_model(
        config.model.source,
        dtype=resolve_dtype(config.model.dtype),
        device=resolve_device(config.model.device),
        decode_layout=True,
    )
    total = num_rows(grid["batches"], grid["lengths"], grid["budgets"], config.attention.page_size)
    with progress_display(quiet).task("decode steps", total) as advance:
        rows = time_steps(model, config.attention, repeats=repeats, on_row=advance, **grid)
    table = {
        "version": 1,
        "page_size": config.attention.page_size,
        "rows": rows,
        "device": _device_name(model.device),
        "model": model.name,
        "dtype": config.model.dtype,
        "selector": config.attention.selector.type,
    }
    cost_class = registry.load("sparrow.cost_models", "measured")
    selector_class = registry.load("sparrow.selectors", config.attention.selector.type)
    settings = cost_class.Config.model_validate({"type": "measured", "tables": [table]})
    cost: Any = cost_class(settings, config.attention.layout, selector_class.landmark_vectors)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    console.print(cost.describe(), markup=False)
    usage = f"cost='{{type: measured, paths: [{output}]}}'"
    console.print(f"{len(rows)} rows in {output}; use it with {usage}", markup=False)


def _numbers(name: str, text: str) -> list[int]:
    from sparrow_core.errors import InputError

    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--{name}={text!r} must be whole numbers separated by commas") from error
    if not numbers or min(numbers) < 1:
        raise InputError(f"--{name}={text!r} must hold at least one number, each at least 1")
    return sorted(set(numbers))


def _device_name(device: Any) -> str:
    import platform

    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
