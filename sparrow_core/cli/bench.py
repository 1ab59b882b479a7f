"""``sparrow bench``: timings as commands, never as tests."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from sparrow_core.cli.bench_options import (
    Batches,
    Device,
    Dtype,
    HardwareName,
    Lengths,
    Models,
    NoDense,
    Repeats,
    Rounds,
)
from sparrow_core.cli.rollout import Arguments, JsonFile, Quiet

if TYPE_CHECKING:
    from sparrow_core.bench.setup import BenchSetup

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


Pages = Annotated[list[str] | None, typer.Option("--pages", help="Pages that sparse layers attend to; may repeat.")]


@app.command("decode")
def decode(
    arguments: Arguments = None,
    model: Models = None,
    batch: Batches = None,
    length: Lengths = None,
    pages: Pages = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="MODEL:BATCH:LENGTH:PAGES, not a cross product; may repeat.")
    ] = None,
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
    from sparrow_core.bench.setup import numbers
    from sparrow_core.bench.table import decode_table
    from sparrow_core.cli.common import console

    sizes = numbers("--batch", batch), numbers("--length", length), numbers("--pages", pages)
    cases = cases_of(model or [], *sizes, case or [])
    setup = _setup(
        arguments,
        _sparse_layers(no_dense_layers),
        device=device,
        dtype=dtype,
        hardware=hardware,
        timing=(rounds, repeats),
    )
    attention, rollout = setup.config.attention, setup.config.rollout
    run = bench_decode(cases, setup.load, attention, rollout, bandwidth=setup.bandwidth, timing=setup.timing)
    rows = _collect("decode", run, len(cases), setup, json_file)
    console.print(decode_table(rows))


@app.command("rollout")
def rollout(
    arguments: Arguments = None,
    model: Models = None,
    batch: Batches = None,
    length: Lengths = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(help="Published preset or schedule file; may repeat. By default the model's own at tau 0.86."),
    ] = None,
    steady: Annotated[
        bool, typer.Option("--steady", help="One step of a full batch, lengths spread over 0 to L.")
    ] = False,
    trajectory: Annotated[
        bool, typer.Option("--trajectory", help="Step times from length 0 to L, integrated.")
    ] = False,
    end_to_end: Annotated[
        bool, typer.Option("--end-to-end", help="A real rollout of forced length beside the integrated time.")
    ] = False,
    points: Annotated[int, typer.Option(help="Lengths at which a trajectory's step is timed; at least 16.")] = 16,
    prompt_tokens: Annotated[int, typer.Option(help="Prompt of an end-to-end rollout.")] = 16,
    no_dense_layers: NoDense = False,
    rounds: Rounds = 5,
    repeats: Repeats = 10,
    device: Device = "auto",
    dtype: Dtype = "auto",
    hardware: HardwareName = None,
    json_file: JsonFile = None,
) -> None:
    """Tokens per second of whole rollouts under a schedule, dense against sparse. Name at least one of the views."""
    from sparrow_core.bench.end_to_end import EndToEndRow
    from sparrow_core.bench.rollout import RolloutRow, rollout_cases
    from sparrow_core.bench.rollout_views import Views, bench_rollout
    from sparrow_core.bench.setup import numbers
    from sparrow_core.bench.table import end_to_end_table, rollout_table
    from sparrow_core.cli.common import console

    views = Views(steady, trajectory, end_to_end, points, prompt_tokens)
    cases = rollout_cases(model or [], numbers("--batch", batch), numbers("--length", length), schedule or [])
    setup = _setup(
        arguments,
        _sparse_layers(no_dense_layers),
        device=device,
        dtype=dtype,
        hardware=hardware,
        timing=(rounds, repeats),
    )
    rows = _collect("rollout", bench_rollout(cases, views, setup), views.count * len(cases), setup, json_file)
    from_steps = [row for row in rows if isinstance(row, RolloutRow)]
    if from_steps:
        console.print(rollout_table(from_steps))
    whole = [row for row in rows if isinstance(row, EndToEndRow)]
    if whole:
        console.print(end_to_end_table(whole))


@app.command("plan")
def plan(
    arguments: Arguments = None,
    model: Models = None,
    length: Lengths = None,
    batch: Annotated[
        list[str] | None, typer.Option("--batch", help="Plan these batches instead of the largest that fits.")
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option("--memory-gib", help="Memory to fill; by default the device's own.")
    ] = None,
    reserve_gib: Annotated[
        float, typer.Option("--reserve-gib", help="Of it, left for the CUDA context, libraries and fragmentation.")
    ] = 2.0,
    page_size: Annotated[int | None, typer.Option("--page-size", help="Tokens per KV page.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Build it on CUDA and compare with what the allocator reports.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "bfloat16",
    hardware: HardwareName = None,
    json_file: JsonFile = None,
) -> None:
    """The largest batch that fits: weights, KV pages, landmarks, records and workspace. No weight is read."""
    from sparrow_core.bench.plan_views import PlanRow, bench_plan
    from sparrow_core.bench.setup import numbers
    from sparrow_core.bench.table import plan_table
    from sparrow_core.cli.common import console

    extra = [] if page_size is None else [f"attention.page_size={page_size}"]
    setup = _setup(arguments, extra, device=device, dtype=dtype, hardware=hardware)
    lengths, batches = numbers("--length", length), numbers("--batch", batch)
    found = bench_plan(
        model or [], lengths, batches, setup, memory_gib=memory_gib, reserve_gib=reserve_gib, check=check
    )
    total = len(model or []) * len(lengths) * max(1, len(batches))
    rows: list[PlanRow] = _collect("plan", found, total, setup, json_file)
    console.print(plan_table(rows))


@app.command("kernels")
def kernels(
    arguments: Arguments = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="dense:B:LENGTH:GROUP, selected|select:B:LENGTH:GROUP:PAGES, then :spread; may repeat."),
    ] = None,
    only: Annotated[str, typer.Option(help="Of the published cases those whose name starts so.")] = "",
    kv_heads: Annotated[int, typer.Option(help="KV heads.")] = 8,
    head_dim: Annotated[int, typer.Option(help="Elements per head.")] = 128,
    no_flashinfer: Annotated[bool, typer.Option("--no-flashinfer", help="Time ours alone.")] = False,
    rounds: Rounds = 21,
    repeats: Repeats = 1,
    device: Device = "auto",
    dtype: Dtype = "auto",
    hardware: HardwareName = None,
    json_file: JsonFile = None,
) -> None:
    """One layer's attention, dense and over selected pages, and scoring with selection, beside FlashInfer."""
    from sparrow_core.bench import flashinfer
    from sparrow_core.bench.kernel_cases import chosen
    from sparrow_core.bench.kernels import KernelBench
    from sparrow_core.bench.table import kernel_table
    from sparrow_core.cli.common import console

    cases = chosen(case or [], only)
    setup = _setup(arguments, [], device=device, dtype=dtype, hardware=hardware, timing=(rounds, repeats))
    reason = flashinfer.absence(setup.device, setup.dtype, wanted=not no_flashinfer)
    bench = KernelBench(
        setup.config.attention,
        setup.device,
        setup.dtype,
        setup.bandwidth,
        setup.timing,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        with_flashinfer=reason is None,
    )
    rows = _collect("kernels", map(bench.row, cases), len(cases), setup, json_file, flashinfer_absent=reason)
    console.print(kernel_table(rows))
    if reason is not None:
        console.print(f"FlashInfer was not timed: {reason}", markup=False)


def _setup(arguments: list[str] | None, own: list[str], **options: Any) -> BenchSetup:
    """The setup of the arguments and of the overrides that the command's ``own`` options stand for."""
    from sparrow_core.bench.setup import bench_setup
    from sparrow_core.cli.common import split_arguments

    path, overrides = split_arguments(arguments)
    return bench_setup(path, [*overrides, *own], **options)


def _sparse_layers(every: bool) -> list[str]:
    return ["attention.dense_layers=[]"] if every else []


class _Row(Protocol):
    def as_json(self) -> dict[str, Any]: ...


_R = TypeVar("_R", bound=_Row)


def _collect(
    name: str, rows: Iterable[_R], total: int, setup: BenchSetup, json_file: Path | None, **more: Any
) -> list[_R]:
    """All rows; the JSON file is written anew after each, so that an interrupted run keeps what it measured."""
    from sparrow_core.bench.environment import write_result
    from sparrow_core.cli.common import error_console

    settings, done = setup.as_json() | more, []
    for row in rows:
        done.append(row)
        error_console.print(f"{name}: {len(done)} of {total}")
        if json_file is not None:
            write_result(json_file, name, settings, [each.as_json() for each in done])
    return done
