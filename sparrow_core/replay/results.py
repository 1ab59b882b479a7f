"""A replay's results: JSON, ``observations.jsonl`` per policy, and tables."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from sparrow_core.replay.replay import Outcome, PolicyReplay, Replay
from sparrow_core.schedule import DENSE_PAGES

OBSERVATIONS_NAME = "observations.jsonl"
REPLAY_NAME = "replay.json"


def policy_directory(output: Path, index: int, run: PolicyReplay) -> Path:
    """Where the results of the ``index``-th policy go."""
    return output / f"{index}-{re.sub(r'[^A-Za-z0-9.]+', '-', run.name).strip('-')[:80]}"


def observation_json(run: PolicyReplay, outcome: Outcome) -> dict[str, Any]:
    """One line of ``observations.jsonl``: the schedule in force and the bins seen under it."""
    return {
        "step": outcome.step,
        "policy": run.name,
        "tau": run.tau,
        "schedule": {"pages": _pages(outcome.schedule.pages), "bin_tokens": outcome.schedule.bin_tokens},
        "bins": [dataclasses.asdict(stats) for stats in outcome.bins()],
        "kept_fraction": outcome.kept_fraction,
        "cost": outcome.cost,
    }


def append_observation(directory: Path, run: PolicyReplay) -> None:
    """Add the last observation of ``run`` to its file; the first one starts the file anew."""
    directory.mkdir(parents=True, exist_ok=True)
    outcome = run.observations[-1]
    with (directory / OBSERVATIONS_NAME).open("w" if outcome.step == 0 else "a", encoding="utf-8") as file:
        file.write(json.dumps(observation_json(run, outcome)) + "\n")


def replay_json(result: Replay) -> dict[str, Any]:
    """What ``sparrow replay --json`` writes."""
    meta = result.recordings.meta
    return {
        "source": result.recordings.source,
        "model": meta.model,
        "selector": meta.selector,
        "page_size": meta.page_size,
        "bin_tokens": result.bins.bin_tokens,
        "num_bins": result.bins.num_bins,
        "quantile": result.bins.quantile,
        "acceptance": result.acceptance,
        "cost_unit": result.cost_unit,
        "dense_cost": result.dense_cost,
        "policies": [_policy_json(result, run) for run in result.runs],
    }


def _policy_json(result: Replay, run: PolicyReplay) -> dict[str, Any]:
    final = run.final
    tails = final.tails(result.acceptance)
    return {
        "policy": run.name,
        "config": run.config.model_dump(mode="json"),
        "tau": run.tau,
        "settled_after": run.settled_after,
        "worst_tail": min(tails.values()),
        "bins_below_tau": [index for index, tail in tails.items() if tail < run.tau],
        "warnings": warnings(result, run),
        "observations": [observation_json(run, outcome) for outcome in run.observations],
        "final": observation_json(run, final),
    }


def warnings(result: Replay, run: PolicyReplay) -> list[str]:
    """Where the final schedule lies outside the measured budgets, and what that does to its tail."""
    messages = []
    for item in run.final.outside:
        where = f"{run.name} asks for {item.asked} pages in bin {span(*result.bins.span(item.bin))}"
        if item.asked < item.used:
            messages.append(f"{where}; shown is the tail of {item.used}, the fewest measured: the true one is lower")
        else:
            messages.append(f"{where}; shown is the tail of {item.used}, the most measured: the true one is no lower")
    return messages


def comparison_table(result: Replay) -> Table:
    """Budgets and predicted tails by length bin, side by side, and what each policy keeps and costs."""
    meta, kind = result.recordings.meta, result.acceptance
    table = Table(
        title=f"{meta.model}, {meta.selector}: pages over {len(result.runs[0].observations)} observations, and the "
        f"{result.bins.quantile:.0%} tail ({kind}) of the last schedule",
        caption=f"cost: {result.cost_unit} per token; dense attention costs {_cost(result.dense_cost)}",
    )
    table.add_column("context tokens")
    for run in result.runs:
        table.add_column(f"{escape(run.name)}\npages", justify="right", overflow="fold")
        table.add_column("\ntail", justify="right")
    tails = [run.final.tails(kind) for run in result.runs]
    for index in sorted({index for each in tails for index in each}):
        lo, hi = result.bins.span(index)
        cells = []
        for run, each in zip(result.runs, tails, strict=True):
            cells += [_path(run, lo), _tail(each.get(index), run.tau)]
        table.add_row(span(lo, hi), *cells)
    table.add_section()
    for name, values in _summary(result):
        table.add_row(name, *(cell for value in values for cell in (value, "")))
    return table


def _summary(result: Replay) -> list[tuple[str, list[str]]]:
    runs = result.runs
    settled = [run.settled_after for run in runs]
    return [
        ("kept", [f"{run.final.kept_fraction:.1%}" for run in runs]),
        ("cost", [_cost(run.final.cost) for run in runs]),
        ("tau", [f"{run.tau:g}" for run in runs]),
        ("settled after", ["not settled" if count is None else f"{count} observations" for count in settled]),
    ]


def span(lo: int, hi: int | None) -> str:
    return f"{lo}+" if hi is None else f"{lo}-{hi - 1}"


def _path(run: PolicyReplay, length: int, most: int = 6) -> str:
    """The budgets at a context length, in order, without repeats; the middle of a long way is left out."""
    schedules = [*(outcome.schedule for outcome in run.observations), run.final.schedule]
    budgets = [s.pages[min(length // s.bin_tokens, s.num_bins - 1)] for s in schedules]
    steps = [b for i, b in enumerate(budgets) if i == 0 or b != budgets[i - 1]]
    shown = ["dense" if b == DENSE_PAGES else str(b) for b in steps]
    if len(shown) > most:
        shown = [*shown[: most - 3], "...", *shown[-2:]]
    return " > ".join(shown)


def _pages(pages: tuple[int, ...]) -> list[int | str]:
    return ["dense" if count == DENSE_PAGES else count for count in pages]


def _tail(value: float | None, tau: float) -> str:
    return "-" if value is None else f"[{'green' if value >= tau else 'red'}]{value:.4f}[/]"


def _cost(value: float) -> str:
    return f"{value:.4g}"
