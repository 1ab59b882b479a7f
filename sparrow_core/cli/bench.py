"""``sparrow bench``: timings as commands, never as tests."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from sparrow_core.cli.rollout import Arguments, JsonFile, Quiet

app = typer.Typer(help="Benchmarks. Ratios are measured side by side in one run.", no_args_is_help=True)

Models = Annotated[list[str] | None, typer.Option("--model", help="Model, like random:qwen3-1.7b; may repeat.")]
Batches = Annotated[list[str] | None, typer.Option("--batch", help="Sequences per step; may repeat.")]
Lengths = Annotated[list[str] | None, typer.Option("--length", help="Context tokens; may repeat.")]
Pages = Annotated[list[str] | None, typer.Option("--pages", help="Pages that sparse layers attend to; may repeat.")]
Cases = Annotated[list[str] | None, typer.Option("--case", help="MODEL:BATCH:LENGTH:PAGES, not a cross product.")]
NoDense = Annotated[bool, typer.Option("--no-dense-layers", help="Every layer is sparse.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto is bfloat16 on CUDA and float32 on a CPU.")]
HardwareName = Annotated[str | None, typer.Option("--hardware", help="Whose bandwidth floors use; default the device.")]
Rounds = Annotated[int, typer.Option(help="Rounds in which the competitors take turns; the median counts.")]
Repeats = Annotated[int, typer.Option(help="Timed steps per round.")]


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


@app.command("decode")
def decode(
    arguments: Arguments = None,
    model: Models = None,
    batch: Batches = None,
    length: Lengths = None,
    pages: Pages = None,
    case: Cases = None,
    no_dense_layers: NoDense = False,
    rounds: Rounds = 7,
    repeats: Repeats = 10,
    device: Device = "auto",
    dtype: Dtype = "auto",
    hardware: HardwareName = None,
    json_file: JsonFile = None,
) -> None:
    """Whole decode steps over random keys and values: dense, sparse and without attention, beside their floors."""
    from sparrow_core.bench.decode import bench_decode, cases_of
    from sparrow_core.bench.environment import write_result
    from sparrow_core.bench.setup import bench_setup, numbers
    from sparrow_core.bench.steps import Timing
    from sparrow_core.bench.table import decode_table
    from sparrow_core.cli.common import console, error_console, split_arguments

    path, overrides = split_arguments(arguments)
    extra = ["attention.dense_layers=[]"] if no_dense_layers else []
    setup = bench_setup(path, [*overrides, *extra], device=device, dtype=dtype, hardware=hardware)
    sizes = numbers("--batch", batch), numbers("--length", length), numbers("--pages", pages)
    cases = cases_of(model or [], *sizes, case or [])
    attention, rollout = setup.config.attention, setup.config.rollout
    timing = Timing(rounds, repeats)
    rows = []
    for row in bench_decode(cases, setup.load, attention, rollout, bandwidth=setup.bandwidth, timing=timing):
        rows.append(row)
        error_console.print(f"{len(rows)} of {len(cases)} cases")
        if json_file is not None:
            settings = setup.as_json() | {"timing": dataclasses.asdict(timing)}
            write_result(json_file, "decode", settings, [r.as_json() for r in rows])
    console.print(decode_table(rows))
