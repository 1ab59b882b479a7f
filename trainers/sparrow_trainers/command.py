"""``sparrow train``: RL on a policy whose rollouts are sparse."""

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


def train(
    arguments: Arguments = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and count memory, without starting.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Train a dense policy from sparse rollouts, the KV budget held by the mismatch that is measured on the way.

    Interrupt it at any point: the same command goes on from the last checkpoint. Several ranks:
    torchrun --nproc-per-node 8 -m sparrow_core.cli train CONFIG.yaml
    """
    from sparrow_core.cli.common import console, error_console, split_arguments
    from sparrow_core.config import load_as
    from sparrow_trainers.config import TrainConfig
    from sparrow_trainers.rl import run

    path, overrides = split_arguments(arguments)
    config = load_as(TrainConfig, path, overrides)
    logging.getLogger("torchtitan").setLevel(logging.WARNING)
    if dry_run:
        for line in run.dry_run(config).lines():
            console.print(line, markup=False)
        return
    record = run.train(config, None if quiet else error_console)
    if record is None:
        console.print(f"{config.output} has all {config.train.steps} steps already; raise train.steps to go on")
        return
    console.print(
        f"{config.train.steps} steps done, reward {record.metrics['reward/mean']:.3f} at the last; "
        f"logs, samples, checkpoints and the model are in {config.output}"
    )
