"""What a calibration leaves behind: ``calibration.json`` with every tail, ``schedule.json`` to run with, and
``tails.json`` for the ``cost_optimal`` policy."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparrow_core.calibrate.calibrate import Calibration
from sparrow_core.calibrate.tails import BinTail
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.schedule_file import ScheduleFile
from sparrow_core.search.tail_table import TailEntry, TailRow, TailTable
from sparrow_core.trace.trace_set import tool_version

CALIBRATION_FILE = "calibration.json"
SCHEDULE_FILE = "schedule.json"
TAILS_FILE = "tails.json"


def calibration_json(result: Calibration, model: str) -> dict[str, Any]:
    config = result.config
    return {
        "model": model,
        "tau": config.mismatch.tau,
        "quantile": config.mismatch.quantile,
        "bin_tokens": config.mismatch.bin_tokens,
        "page_size": config.attention.page_size,
        "mode": config.calibrate.mode,
        "acceptance": "exact" if config.mismatch.exact else "lower",
        "budgets": list(result.budgets),
        "best": result.best,
        "cells": [
            {"selector": c.selector, "pages": c.pages, "bins": [dataclasses.asdict(b) for b in c.bins]}
            for c in result.cells
        ],
        "schedules": {
            selector: {"pages": list(search.pages), "total_cost": search.total_cost}
            for selector, search in result.searches.items()
        },
        "warnings": list(result.warnings),
    }


def tail_table(result: Calibration, model: str) -> TailTable:
    """The measured tails in the form that the ``cost_optimal`` policy starts from."""
    config = result.config
    rows = [
        TailRow(
            selector=cell.selector,
            page_size=config.attention.page_size,
            pages=cell.pages,
            bins=tuple(_entry(stats) for stats in cell.bins),
        )
        for cell in result.cells
    ]
    return TailTable(
        model=model, quantile=config.mismatch.quantile, bin_tokens=config.mismatch.bin_tokens, rows=tuple(rows)
    )


def _entry(stats: BinTail) -> TailEntry | None:
    if stats.tail is None or stats.interval is None:
        return None
    low, high = stats.interval
    # A bootstrap interval need not hold the estimate itself.
    return TailEntry(tokens=stats.tokens, tail=stats.tail, low=min(low, stats.tail), high=max(high, stats.tail))


def schedule_of(result: Calibration, model: str, selector: str | None = None) -> ScheduleFile:
    """The schedule of ``selector`` (the best one when None), with where it comes from."""
    config, selector = result.config, selector or result.best
    layout = config.attention.layout
    cells = [cell for cell in result.cells if cell.selector == selector]
    schedule = BudgetSchedule(
        pages=result.searches[selector].pages,
        bin_tokens=config.mismatch.bin_tokens,
        page_size=layout.page_size,
        sink_pages=layout.sink_pages,
        recent_pages=layout.recent_pages,
    )
    provenance = {
        "tau": config.mismatch.tau,
        "quantile": config.mismatch.quantile,
        "mode": config.calibrate.mode,
        "bound": config.calibrate.bound,
        "acceptance": "exact" if config.mismatch.exact else "lower",
        "temperature": config.rollout.temperature,
        "dense_layers": list(layout.dense_layers),
        "data": config.prompts.path or "built-in sample prompts",
        "tokens_per_bin": [stats.tokens for stats in cells[0].bins],
        "budgets": list(result.budgets),
        "warnings": list(result.warnings) if selector == result.best else [],
        "tool_version": tool_version(),
    }
    return ScheduleFile(schedule, model, selector, provenance)
