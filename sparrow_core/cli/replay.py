"""``sparrow replay``: recorded traces under other policies and thresholds, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sparrow_core.cli.rollout import Arguments, JsonFile


def replay(
    traces: Annotated[
        Path,
        typer.Argument(help="A directory with scored traces, or a calibration's with its units.", metavar="TRACES"),
    ],
    arguments: Arguments = None,
    json_file: JsonFile = None,
) -> None:
    """What budgets would other policies have chosen on recorded traces, with which tail and cost?

    Example: sparrow replay runs/calibrate policies='[{type: tail_threshold, tau: 0.86}, {type: static, pages: 16}]'
    """
    from sparrow_core.cli.common import console, error_console, split_arguments
    from sparrow_core.config import load_as, save_config
    from sparrow_core.replay import results
    from sparrow_core.replay.config import ReplayConfig
    from sparrow_core.replay.recordings import load_recordings
    from sparrow_core.replay.replay import PolicyReplay, Replayer

    path, overrides = split_arguments(arguments)
    config = load_as(ReplayConfig, path, overrides)
    replayer = Replayer(config, load_recordings(traces, config.selector))
    save_config(config, config.output)
    output = Path(config.output)
    order = [name for name, _ in replayer.policies]

    def record(run: PolicyReplay) -> None:
        results.append_observation(results.policy_directory(output, order.index(run.name), run), run)

    result = replayer.run(record)
    text = json.dumps(results.replay_json(result), indent=1) + "\n"
    for target in filter(None, (output / results.REPLAY_NAME, json_file)):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    console.print(results.comparison_table(result))
    for run in result.runs:
        for message in results.warnings(result, run):
            error_console.print(f"[yellow]warning:[/] {message}")
    console.print(f"replay.json and observations.jsonl of every policy are in {output}", markup=False)
