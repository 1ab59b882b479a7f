"""A measured rollout's directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparrow_core.config import MismatchConfig, validate
from sparrow_core.mismatch import AcceptanceSketch, MismatchStream
from sparrow_core.mismatch.stream import Kind
from sparrow_core.report.data import Configuration, Histogram, Run, TailBin
from sparrow_core.report.files import MEASURE, TRACES, MeasureFile, StatsRow, read_json
from sparrow_core.trace import TraceSet
from sparrow_core.train_log import BinRecord


def read(directory: Path, name: str) -> Run:
    """From the traces where they are, else from ``measure.json``. Raises InputError when a file is damaged."""
    file = read_json(directory / MEASURE, MeasureFile) if (directory / MEASURE).exists() else None
    facts = () if file is None else _facts(file)
    if (directory / TRACES).exists():
        return _from_traces(directory, name, facts)
    assert file is not None
    configuration = Configuration(
        policy_label(file.policy, file.config), tail_bins(file.bins), kept_fraction=file.kept_fraction
    )
    return Run(
        name=name,
        kind="measured rollout",
        model=file.model,
        tau=file.tau,
        quantile=file.quantile,
        bin_tokens=_settings(file.config, str(directory / MEASURE)).bin_tokens,
        bound="exact" if has_exact(file.bins) else "lower bound",
        facts=facts,
        configurations=(configuration,),
    )


def tail_bins(bins: Sequence[StatsRow | BinRecord]) -> tuple[TailBin, ...]:
    """The bins that hold tokens. Exact tails where all have them; intervals and means are of the lower bound alone."""
    rows = [b for b in bins if b.tokens]
    if has_exact(rows):
        return tuple(TailBin(b.lo, b.hi, b.tokens, b.tail_exact, None, None, b.kept_fraction) for b in rows)
    return tuple(TailBin(b.lo, b.hi, b.tokens, b.tail_lower, b.tail_interval, b.mean, b.kept_fraction) for b in rows)


def has_exact(rows: Sequence[StatsRow | BinRecord]) -> bool:
    return all(b.tail_exact is not None for b in rows if b.tokens)


def policy_label(policy: str, config: dict[str, Any]) -> str:
    """The policy's name, with its budget where it is one for every length."""
    pages = config.get("policy", {}).get("pages")
    return f"{policy}, {pages} pages" if isinstance(pages, int) else policy


def _from_traces(directory: Path, name: str, facts: tuple[tuple[str, str], ...]) -> Run:
    traces = TraceSet.load(directory)
    meta = traces.meta
    settings = _settings(meta.config, str(directory / TRACES))
    stream = traces.mismatch(bin_tokens=settings.bin_tokens, num_bins=settings.num_bins, quantile=settings.quantile)
    attended = sum(int(trace.attended(meta.page_size).sum()) for trace in traces.traces)
    context = sum(int(trace.lengths.sum()) for trace in traces.traces)
    label = policy_label(meta.policy, meta.config)
    is_exact = settings.exact and all(trace.scores().acceptance_exact is not None for trace in traces.traces)
    kind: Kind = "exact" if is_exact else "lower"
    kept = attended / context if context else None
    return Run(
        name=name,
        kind="measured rollout",
        model=meta.model,
        tau=settings.tau,
        quantile=settings.quantile,
        bin_tokens=settings.bin_tokens,
        bound="exact" if is_exact else "lower bound",
        facts=(("policy", label), ("selector", meta.selector), ("page size", str(meta.page_size)), *facts),
        configurations=(Configuration(label, _stream_bins(stream, kind), kept_fraction=kept),),
        histograms=(Histogram(f"{name}: {label}", _all_lengths(stream, kind)),),
    )


def _stream_bins(stream: MismatchStream, kind: Kind) -> tuple[TailBin, ...]:
    """The bins that hold tokens, with tail, interval and mean of one bound of the acceptance."""
    return tuple(
        TailBin(
            b.lo,
            b.hi,
            b.tokens,
            sketch.quantile(stream.quantile),
            sketch.tail_confidence(stream.quantile),
            sketch.mean,
            b.kept_fraction,
        )
        for index, b in enumerate(stream.bins())
        if (sketch := stream.sketch(index, kind)).count
    )


def _facts(file: MeasureFile) -> tuple[tuple[str, str], ...]:
    facts = [("samples", f"{file.sequences:,}"), ("tokens drawn", f"{file.generated_tokens:,}")]
    if file.noise_floor is not None:
        facts.append(("noise floor", f"acceptance ≥ {file.noise_floor.min:.6f}, dense against dense"))
    return tuple(facts)


def _settings(config: dict[str, Any], source: str) -> MismatchConfig:
    return validate(MismatchConfig, config.get("mismatch", {}), f"{source}: the mismatch section of its config")


def _all_lengths(stream: MismatchStream, kind: Kind) -> AcceptanceSketch:
    total = AcceptanceSketch()
    for index in range(stream.num_bins):
        total.merge(stream.sketch(index, kind))
    return total
