"""``sparrow rollout`` and ``sparrow measure``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparrow_core.config import RunConfig
    from sparrow_core.model import LanguageModel

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        help="A YAML file, then any number of dotted key=value overrides.", metavar="[CONFIG.yaml] [KEY=VALUE]..."
    ),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the result to this JSON file.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def rollout(arguments: Arguments = None, quiet: Quiet = False) -> None:
    """Generate with the configured model, backend and policy; save the traces.

    Interrupted, the same command goes on from the samples that were finished.
    """
    from sparrow_core.cli.common import console, progress_display
    from sparrow_core.engine.build import build_engine, build_policy, build_requests
    from sparrow_core.measure.measure import clipped_share, rollout_traces, trace_meta
    from sparrow_core.measure.partial import PartialTraces
    from sparrow_core.trace import TraceSet

    config, model, prompts = prepare(arguments)
    engine = build_engine(model, config.attention, config.rollout)
    policy = build_policy(config.policy, config.attention.layout)
    requests = build_requests(model, prompts, config.rollout, step=config.rollout.step)
    directory = save_run(config)
    partial = PartialTraces(directory, trace_meta(config, model))
    traces = rollout_traces(engine, requests, policy, progress_display(quiet), partial)
    TraceSet(traces, trace_meta(config, model)).save(directory)
    partial.clear()
    stats = engine.stats
    console.print(
        f"{len(traces)} samples, {stats.generated_tokens} tokens at {stats.tokens_per_second:.0f} tok/s; "
        f"attended to {stats.kept_fraction:.1%} of the context in sparse layers; "
        f"{stats.preemptions} preemptions; saved to {directory}"
    )
    warn_if_clipped(clipped_share(traces))


def measure(arguments: Arguments = None, json_file: JsonFile = None, quiet: Quiet = False) -> None:
    """Roll out, recompute densely, and report acceptance by context length with plots.

    Interrupted, the same command goes on from the samples that were finished.
    """
    from sparrow_core.cli.common import console, progress_display
    from sparrow_core.measure.measure import clipped_share, measurement_json, trace_meta
    from sparrow_core.measure.measure import measure as run_measure
    from sparrow_core.measure.partial import PartialTraces
    from sparrow_core.measure.plots import plot_acceptance, plot_tail
    from sparrow_core.measure.table import bins_table

    config, model, prompts = prepare(arguments)
    directory = save_run(config)
    partial = PartialTraces(directory, trace_meta(config, model))
    result = run_measure(config, model, prompts, progress_display(quiet), partial=partial)
    result.traces.save(directory)
    summary = measurement_json(result)
    for path in filter(None, (directory / "measure.json", json_file)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(summary, indent=1) + "\n")
    plot_acceptance({config.policy.type: result}, directory / "acceptance.png")
    plot_tail({config.policy.type: result}, directory / "tail.png")
    partial.clear()
    console.print(bins_table(result))
    console.print(
        f"attended to {summary['attended_tokens']:,} of {summary['dense_tokens']:,} context tokens "
        f"({summary['kept_fraction']:.1%}); noise floor: acceptance >= {result.noise.min:.6f} dense against dense; "
        f"traces, measure.json and plots are in {directory}"
    )
    warn_if_clipped(clipped_share(result.traces.traces))


def prepare(arguments: list[str] | None) -> tuple[RunConfig, LanguageModel, list[tuple[int, ...]]]:
    """Config, model and encoded prompts; everything that can be wrong is checked before anything is generated."""
    from sparrow_core.cli.common import split_arguments
    from sparrow_core.config import load_config

    path, overrides = split_arguments(arguments)
    config = load_config(path, overrides)
    check_schedule_origin(config)
    return config, *load_inputs(config)


def load_inputs(config: RunConfig, *, needs_room: bool = True) -> tuple[LanguageModel, list[tuple[int, ...]]]:
    """The model and the encoded prompts.

    Args:
        needs_room: refuse prompts that leave no room in the context to generate.
    """
    from sparrow_core.errors import InputError
    from sparrow_core.measure.sample_prompts import long_text_prompts, reasoning_prompts
    from sparrow_core.model import load_model, resolve_device, resolve_dtype
    from sparrow_core.prompts import encode_prompts, read_prompts

    if config.prompts.path is not None:
        prompts = read_prompts(config.prompts.path, field=config.prompts.field, limit=config.prompts.limit)
    else:
        prompts = reasoning_prompts(4, config.rollout.seed) + long_text_prompts([2000, 4000, 8000, 16000])
        prompts = prompts[: config.prompts.limit]
    model = load_model(
        config.model.source,
        dtype=resolve_dtype(config.model.dtype),
        device=resolve_device(config.model.device),
        decode_layout=True,
    )
    encoded = encode_prompts(prompts, model.tokenizer, chat=config.prompts.chat)
    for prompt, ids in zip(prompts, encoded, strict=True):
        if needs_room and len(ids) >= model.context_length:
            raise InputError(
                f"{prompt.source} has {len(ids)} tokens but {model.name}'s context is {model.context_length}; "
                f"shorten it to at most {model.context_length - 1} tokens"
            )
    return model, encoded


def check_schedule_origin(config: RunConfig) -> None:
    """Refuse a schedule file that was made for another model or selector."""
    from sparrow_core.model import model_name
    from sparrow_core.schedule_file import check_policy_origin

    check_policy_origin(config.policy, model_name(config.model.source), config.attention.selector.type)


def save_run(config: RunConfig) -> Path:
    """Save the resolved config where the results will go, before any work: a path that cannot be written is refused."""
    from sparrow_core.config import save_config

    directory = Path(config.output)
    save_config(config, directory)
    return directory


def warn_if_clipped(share: float, threshold: float = 0.5) -> None:
    """Say so when most answers were cut instead of ending by themselves."""
    from sparrow_core.cli.common import error_console

    if share > threshold:
        error_console.print(
            f"[yellow]warning:[/] {share:.0%} of the samples were cut by rollout.max_tokens or the context; "
            "raise rollout.max_tokens if they should end by themselves"
        )
