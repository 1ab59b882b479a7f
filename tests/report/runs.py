"""Run directories to report on, made from synthetic traces."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from sparrow_core.calibrate.tails import BinTail, CellTokens, bin_tails
from sparrow_core.cli import main
from sparrow_core.replay.recordings import load_recordings
from sparrow_core.trace import TraceSet
from tests.replay.recorded import meta, trace, write_units

BUDGETS = (6, 8, 12, 16, 24, 32, 48, 64)
CLOSED_LOOP = "{type: 'sparrow_policies.tail_threshold:TailThresholdPolicy', tau: 0.8, page_step: 1}"


def measured_run(directory: Path, pages: int, *, tau: float = 0.8) -> Path:
    """Traces of a rollout with one budget, as ``sparrow measure`` leaves them but for measure.json."""
    config = {
        "mismatch": {"bin_tokens": 500, "num_bins": 4, "quantile": 0.05, "tau": tau},
        "policy": {"type": "static", "pages": pages},
    }
    TraceSet([trace(pages, prompt=p) for p in range(3)], meta(policy="static", config=config)).save(directory)
    return directory


def calibration(directory: Path, selectors: tuple[str, ...] = ("mean_landmark",)) -> Path:
    """Units and ``calibration.json`` of a calibration that meets tau = 0.8 with a schedule."""
    cells, schedules = [], {}
    for selector in selectors:
        write_units(directory, BUDGETS, prompts=4, selector=selector)
        own = {b: _tails(directory, selector, i) for i, b in enumerate(BUDGETS)}
        cells += [
            {"selector": selector, "pages": b, "bins": [dataclasses.asdict(t) for t in tails]}
            for b, tails in own.items()
        ]
        pages = [min(b for b, tails in own.items() if (tails[i].tail or 0) >= 0.8) for i in range(4)]
        schedules[selector] = {"pages": pages, "total_cost": float(sum(pages))}
    document = {
        "tau": 0.8,
        "quantile": 0.05,
        "bin_tokens": 500,
        "model": "synthetic",
        "budgets": BUDGETS,
        "best": selectors[0],
        "cells": cells,
        "schedules": schedules,
        "warnings": ["bin 1500-1999: only <few> tokens"],
    }
    (directory / "calibration.json").write_text(json.dumps(document))
    return directory


def closed_loop(directory: Path, traces: Path) -> Path:
    """A replay's directory, with one closed-loop policy and one of a single budget."""
    policies = f"[{CLOSED_LOOP}, {{type: static, pages: 16}}]"
    assert main(["replay", str(traces), f"policies={policies}", f"output={directory}", "tokens_per_bin=1500"]) == 0
    return directory


def _tails(directory: Path, selector: str, sample: int) -> list[BinTail]:
    tokens = load_recordings(directory, selector).rollouts[sample]
    attended = np.minimum(tokens.lengths_T, tokens.pages_T * 16)
    cell = CellTokens(tokens.lengths_T % 4, tokens.lengths_T, tokens.lower_T, attended)
    return bin_tails(
        cell, bin_tokens=500, num_bins=4, quantile=0.05, min_tokens=20, confidence=0.95, resamples=100, seed=0
    )
