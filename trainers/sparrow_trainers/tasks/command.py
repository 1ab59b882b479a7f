"""``sparrow warm-start``: a small model to begin RL with."""

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


def warm_start(
    arguments: Arguments = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Teach a new small Qwen3 a task's form by supervised steps, up to an expected reward to begin RL with.

    What is written is a Hugging Face directory with a tokenizer of whole words, for model.source of sparrow train.
    """
    from sparrow_core.cli.common import console, progress_display, split_arguments
    from sparrow_core.config import load_as
    from sparrow_trainers.tasks.config import WarmStartConfig
    from sparrow_trainers.tasks.warm_start import warm_start as make

    path, overrides = split_arguments(arguments)
    config = load_as(WarmStartConfig, path, overrides)
    logging.getLogger("torchtitan").setLevel(logging.WARNING)
    made = make(config, progress_display(quiet))
    console.print(
        f"{made.steps} steps, expected reward {made.expected_reward:.3f} at temperature 1; "
        f"the model ({made.num_parameters:,} parameters) is in {made.directory}",
        markup=False,
    )
