"""``sparrow bench``: timings as commands, never as tests."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from sparrow_core.cli.rollout import JsonFile, Quiet

app = typer.Typer(help="Benchmarks. Ratios are measured side by side in one run.", no_args_is_help=True)


@app.command("cpu")
def cpu(
    model: Annotated[str, typer.Option(help="Model directory or alias.")] = "smollm2",
    batch: Annotated[int, typer.Option(help="Sequences that decode together.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 256,
    new_tokens: Annotated[int, typer.Option(help="Tokens generated per prompt.")] = 64,
    repeats: Annotated[int, typer.Option(help="Timed rounds; the median counts.")] = 3,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Our dense engine against transformers generate: tokens per second, greedy, same prompts, same threads."""
    from sparrow_core.cli.common import console, progress_display
    from sparrow_core.config import load_config
    from sparrow_core.measure.bench_cpu import bench_cpu
    from sparrow_core.model import load_model

    overrides = [f"model.source={model}", f"rollout.max_batch={batch}", f"rollout.max_tokens={new_tokens}"]
    config = load_config(None, [*overrides, "model.device=cpu", "policy=dense", "rollout.prefill_chunk=2048"])
    loaded = load_model(config.model.source, decode_layout=True)
    result = bench_cpu(
        config,
        loaded,
        str(loaded.directory),
        prompt_tokens=prompt_tokens,
        repeats=repeats,
        progress=progress_display(quiet),
    )
    if json_file is not None:
        json_file.write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    console.print(
        f"batch {result.batch}, {result.prompt_tokens} prompt + {result.new_tokens} new tokens, "
        f"median of {result.repeats}: ours {result.ours_tokens_per_second:.1f} tok/s, transformers "
        f"{result.transformers_tokens_per_second:.1f} tok/s, ratio {result.ratio:.2f}; "
        f"tokens {'equal' if result.equal_tokens else 'DIFFER'}"
    )
