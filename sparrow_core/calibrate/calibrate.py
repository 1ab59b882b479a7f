"""Calibration: the tail of every budget in every length bin, and the cheapest schedule that keeps it above tau."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparrow_core import registry
from sparrow_core.calibrate.config import CalibrateConfig
from sparrow_core.calibrate.tails import BinTail, CellTokens, bin_tails
from sparrow_core.calibrate.units import TokenIds, UnitRunner
from sparrow_core.config import load_as, resolved, save_config
from sparrow_core.config.load import CONFIG_FILE
from sparrow_core.contracts import CostModel
from sparrow_core.errors import InputError
from sparrow_core.measure.progress import Progress
from sparrow_core.model import LanguageModel
from sparrow_core.search import Candidate, SearchResult, bin_costs, isotonic, optimal_schedule
from sparrow_core.trace import Trace


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration's tails over the bins."""

    selector: str
    pages: int
    bins: tuple[BinTail, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    config: CalibrateConfig
    budgets: tuple[int, ...]
    cells: tuple[Cell, ...]
    searches: dict[str, SearchResult]
    """The best schedule for each selector alone."""
    best: str
    """The selector whose schedule costs least."""
    warnings: tuple[str, ...]


def calibrate(
    config: CalibrateConfig, model: LanguageModel, prompts: Sequence[TokenIds], progress: Progress
) -> Calibration:
    """Measure what is not measured yet under ``config.output`` and search the schedule.

    Interrupted at any point, a second call goes on where the first stopped and gives the same result. Raises
    InputError when the directory holds a calibration of another configuration.
    """
    output = Path(config.output)
    _claim(output, config)
    runner = UnitRunner(config, model, prompts, output)
    tokens: dict[tuple[str, int], list[CellTokens]] = {}
    units = runner.units()
    with progress.task("calibration", len(units)) as advance:
        for index, unit in enumerate(units):
            traces = runner.run(unit, progress.quiet())
            for sample, cell in enumerate(
                cell_tokens(traces.traces, traces.meta.page_size, exact=config.mismatch.exact)
            ):
                tokens.setdefault((unit.selector.type, runner.budgets[sample]), []).append(cell)
            advance(index + 1)
    cells = tuple(
        Cell(selector, pages, tuple(pooled_tails(config, parts))) for (selector, pages), parts in sorted(tokens.items())
    )
    return search_schedules(config, runner.budgets, cells)


def search_schedules(config: CalibrateConfig, budgets: tuple[int, ...], cells: tuple[Cell, ...]) -> Calibration:
    """The cheapest schedule per selector; a bin where no budget meets tau takes the one with the best tail."""
    searches = {}
    for selector in sorted({cell.selector for cell in cells}):
        own = [cell for cell in cells if cell.selector == selector]
        costs = _costs(config, budgets, registry.load("sparrow.selectors", selector).landmark_vectors)
        searches[selector] = optimal_schedule(_candidates(config, own, costs), config.mismatch.tau)
    best = min(searches, key=lambda s: (len(searches[s].infeasible_bins), searches[s].total_cost, s))
    return Calibration(config, budgets, cells, searches, best, tuple(_warnings(config, cells, searches[best])))


def _claim(output: Path, config: CalibrateConfig) -> None:
    """Take ``output`` for this configuration, or make sure that it is taken for the same one."""
    if (output / CONFIG_FILE).exists():
        there = resolved(load_as(CalibrateConfig, output / CONFIG_FILE))
        ours = resolved(config)
        different = sorted(key for key in ours if ours[key] != there.get(key))
        if different:
            raise InputError(
                f"output={str(output)!r} holds a calibration with other settings in {', '.join(different)}; "
                "give another output, or the same settings to go on with it"
            )
    else:
        save_config(config, output)


def cell_tokens(traces: Sequence[Trace], page_size: int, *, exact: bool) -> list[CellTokens]:
    """Of each scored trace; ``exact`` takes the exact acceptance, which needs kept hidden states, not the bound."""
    cells = []
    for trace in traces:
        scores = trace.scores()
        acceptance = scores.acceptance_exact if exact else scores.acceptance_lower
        assert acceptance is not None
        cells.append(
            CellTokens(
                prompts_T=np.full(len(trace.token_ids), trace.key.prompt),
                lengths_T=trace.lengths.numpy(),
                acceptance_T=acceptance.numpy().astype(np.float64),
                attended_T=trace.attended(page_size).numpy(),
            )
        )
    return cells


def pooled_tails(config: CalibrateConfig, parts: Sequence[CellTokens]) -> list[BinTail]:
    """Per length bin, over the tokens of all ``parts``."""
    cell = CellTokens(
        np.concatenate([p.prompts_T for p in parts]),
        np.concatenate([p.lengths_T for p in parts]),
        np.concatenate([p.acceptance_T for p in parts]),
        np.concatenate([p.attended_T for p in parts]),
    )
    return bin_tails(
        cell,
        bin_tokens=config.mismatch.bin_tokens,
        num_bins=config.mismatch.num_bins,
        quantile=config.mismatch.quantile,
        min_tokens=config.calibrate.min_tokens,
        confidence=config.mismatch.confidence,
        resamples=config.calibrate.resamples,
        seed=config.rollout.seed,
    )


def _costs(config: CalibrateConfig, budgets: tuple[int, ...], landmark_vectors: int) -> np.ndarray:
    """``[len(budgets), num_bins]``: from the cost model, else pages attended to."""
    bins = config.mismatch.num_bins
    if config.cost is None:
        return np.repeat(np.asarray(budgets, dtype=np.float64)[:, None], bins, axis=1)
    model_class: type[CostModel] = registry.load("sparrow.cost_models", config.cost.type)
    model = model_class(config.cost, config.attention.layout, landmark_vectors)
    return bin_costs(
        model, budgets, bin_tokens=config.mismatch.bin_tokens, num_bins=bins, batch=config.calibrate.cost_batch
    )


def _candidates(config: CalibrateConfig, cells: list[Cell], costs: np.ndarray) -> list[Candidate]:
    """One per budget, with tails made non-decreasing in the budget (more pages never drift further)."""
    cells = sorted(cells, key=lambda cell: cell.pages)
    tails = [[_bound(config, b) for b in cell.bins] for cell in cells]
    for index in range(config.mismatch.num_bins):
        rows = [row for row, cell in enumerate(cells) if tails[row][index] is not None]
        weights = [cells[row].bins[index].tokens for row in rows]
        fitted: list[float] = isotonic([tails[row][index] or 0.0 for row in rows], weights).tolist() if rows else []
        for row, value in zip(rows, fitted, strict=True):
            tails[row][index] = value
    return [
        Candidate(cell.selector, config.attention.page_size, cell.pages, tuple(tail), tuple(cost))
        for cell, tail, cost in zip(cells, tails, costs.tolist(), strict=True)
    ]


def _bound(config: CalibrateConfig, stats: BinTail) -> float | None:
    if config.calibrate.bound == "tail" or stats.interval is None:
        return stats.tail
    return stats.interval[0]


def _warnings(config: CalibrateConfig, cells: tuple[Cell, ...], result: SearchResult) -> list[str]:
    width, tau = config.mismatch.bin_tokens, config.mismatch.tau
    messages = [
        f"bin {b * width}-{(b + 1) * width - 1}: tau={tau} is not reached by any budget of the grid "
        f"(best tail {result.choices[b].tail}); add larger calibrate.budgets"
        for b in result.infeasible_bins
    ]
    for b in result.unmeasured_bins:
        tokens = max(cell.bins[b].tokens for cell in cells)
        rule = "the last measured bin's" if b in result.extrapolated_bins else "the next longer measured bin's"
        messages.append(
            f"bin {b * width}-{(b + 1) * width - 1}: only {tokens} tokens, fewer than "
            f"calibrate.min_tokens={config.calibrate.min_tokens}; it takes {rule} budget"
        )
    return messages
