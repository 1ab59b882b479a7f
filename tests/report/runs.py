"""Run directories to report on, made from synthetic traces."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import torch

from sparrow_core.calibrate.tails import BinTail, CellTokens, bin_tails
from sparrow_core.cli import main
from sparrow_core.mismatch import MismatchStream, TokenMismatch
from sparrow_core.replay.recordings import load_recordings
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule
from sparrow_core.trace import TraceSet
from sparrow_core.train_log import RunInfo, StepRecord, bin_records, write_info
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


def training_run(directory: Path, *, steps: int = 12, policy: str = "tail_threshold", seed: int = 0) -> Path:
    """The log of a training run whose budgets rise until the tail is at tau; bin 1500+ stays empty and dense."""
    generator = torch.Generator().manual_seed(seed)
    info = RunInfo("synthetic", policy, 0.8, 0.05, 500, objective="grpo", facts={"prompts": "<few>"})
    lines = []
    for step in range(steps):
        pages = (6 + step // 2, 12 + step // 2, 24, DENSE_PAGES)
        bins = bin_records(_observed(pages, generator), BudgetSchedule(pages, bin_tokens=500))
        lines.append(StepRecord(step, step, _metrics(step, float(torch.rand(1, generator=generator))), bins).line())
    directory.mkdir(parents=True)
    write_info(directory, info)
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def _observed(pages: tuple[int, ...], generator: torch.Generator) -> MismatchStream:
    """700 tokens in each of the first three bins, nearer to dense under more pages."""
    lengths_T = torch.arange(1, 1500, 2)
    budgets_T = torch.tensor(pages)[lengths_T // 500].clamp(max=(lengths_T + 15) // 16)
    lower_T = 1 - torch.rand(len(lengths_T), generator=generator) ** 4 * (4 / budgets_T).clamp(max=0.9)
    stream = MismatchStream(bin_tokens=500, num_bins=4)
    attended_T = (budgets_T * 16).clamp(max=lengths_T)
    stream.observe(TokenMismatch(lengths_T, lower_T, (lower_T + 0.01).clamp(max=1), budgets_T, attended_T))
    return stream


def _metrics(step: int, noise: float) -> dict[str, float]:
    return {
        "reward/mean": 1 - 0.9**step + 0.1 * noise,
        "reward/std": 0.3,
        "response/length_mean": 400 + 20 * step + 30 * noise,
        "mismatch/kl_k3": math.inf if step == 1 else 0.01 + 0.002 * noise,
        "mismatch/ess": 0.9 + 0.05 * noise,
        "mismatch/chi2": 0.1 * noise,
        "loss/policy": -0.01 * noise,
        "entropy": 1.2,
        "rollout/tokens_per_second": 5000 + 100 * noise,
        "time/rollout_s": 8 - step / 10,
        "time/recompute_s": 1.5,
        "time/update_s": 2.0,
        "time/step_s": 12.5,
        "time/rollout_share": (8 - step / 10) / 12.5,
    }


def _tails(directory: Path, selector: str, sample: int) -> list[BinTail]:
    tokens = load_recordings(directory, selector).rollouts[sample]
    attended = np.minimum(tokens.lengths_T, tokens.pages_T * 16)
    cell = CellTokens(tokens.lengths_T % 4, tokens.lengths_T, tokens.lower_T, attended)
    return bin_tails(
        cell, bin_tokens=500, num_bins=4, quantile=0.05, min_tokens=20, confidence=0.95, resamples=100, seed=0
    )
