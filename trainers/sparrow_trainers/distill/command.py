"""``sparrow distill``: train the adapter that draws sparse rollouts to the dense policy."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        help="A YAML file, then any number of dotted key=value overrides.", metavar="[CONFIG.yaml] [KEY=VALUE]..."
    ),
]


def distill(
    arguments: Arguments = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, without starting.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Train a low-rank adapter of the sparse policy towards the dense one, which stays as it is.

    Interrupt it at any point: the same command goes on from the last checkpoint. Several ranks:
    torchrun --nproc-per-node 8 -m sparrow_core.cli distill CONFIG.yaml
    """
    from sparrow_core.cli.common import console, error_console, split_arguments
    from sparrow_core.config import load_as
    from sparrow_trainers.distill import run
    from sparrow_trainers.distill.run_config import DistillRunConfig

    path, overrides = split_arguments(arguments)
    config = load_as(DistillRunConfig, path, overrides)
    logging.getLogger("torchtitan").setLevel(logging.WARNING)
    if dry_run:
        for line in run.dry_run(config).lines():
            console.print(line, markup=False)
        return
    record = run.distill(config, None if quiet else error_console)
    if record is None:
        console.print(f"{config.output} has all {config.train.steps} steps already; raise train.steps to go on")
        return
    console.print(
        f"{config.train.steps} steps done, loss {record.metrics['distill/loss']:.4f} and mean acceptance "
        f"{record.metrics['adapter/acceptance_mean']:.4f} at the last; the adapter is in {config.output}/adapter",
        markup=False,
    )
