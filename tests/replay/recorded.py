"""Hand-made recordings: traces whose acceptance at each length and budget is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from sparrow_core.testing.simulator import SyntheticMismatch
from sparrow_core.trace import DenseScores, SampleKey, Trace, TraceMeta, TraceSet

Acceptance = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""(lengths [T], budgets [T], generator) -> acceptance [T]."""

MODEL = SyntheticMismatch(pages_at_1k=24.0, length_exponent=0.7)


def meta(**changes: object) -> TraceMeta:
    settings = {"bin_tokens": 500, "num_bins": 4, "quantile": 0.05, "tau": 0.86}
    values: dict[str, object] = {
        "model": "synthetic",
        "backend": "reference",
        "selector": "mean_landmark",
        "policy": "budget_grid",
        "page_size": 16,
        "sink_pages": 1,
        "recent_pages": 2,
        "dense_layers": (0, 1),
        "config": {"mismatch": settings},
        **changes,
    }
    return TraceMeta(**values)  # type: ignore[arg-type]


def trace(
    budget: int,
    *,
    prompt: int = 0,
    sample: int = 0,
    start: int = 20,
    tokens: int = 1900,
    acceptance: Acceptance = MODEL.sample,
    scored: bool = True,
    exact: bool = False,
    temperature: float = 1.0,
) -> Trace:
    """One response of ``tokens`` tokens after a prompt of ``start``, drawn under ``budget`` pages."""
    lengths = start + np.arange(tokens)
    num_pages = -(-lengths // 16)
    values = acceptance(lengths, np.full(tokens, budget), np.random.default_rng([prompt, sample]))
    lower = torch.tensor(values, dtype=torch.float32).clamp(0, 1)
    upper = (lower + 0.1).clamp(max=1)
    zeros = torch.zeros(tokens)
    return Trace(
        key=SampleKey(seed=0, step=0, prompt=prompt, sample=sample),
        prompt_ids=torch.ones(start, dtype=torch.int32),
        token_ids=torch.ones(tokens, dtype=torch.int32),
        logprobs=zeros,
        topk_ids=torch.zeros(tokens, 1, dtype=torch.int32),
        topk_logprobs=zeros[:, None],
        pages=torch.from_numpy(np.minimum(budget, num_pages)).int(),
        finish_reason="length",
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        policy_version=0,
        dense=DenseScores(zeros, lower, upper, (lower + upper) / 2 if exact else None) if scored else None,
    )


def write_units(
    directory: Path,
    budgets: Sequence[int],
    *,
    prompts: int = 6,
    selector: str = "mean_landmark",
    tokens: int = 1900,
    acceptance: Acceptance = MODEL.sample,
) -> Path:
    """A calibration's units: each prompt under every budget, as one sample per budget."""
    for prompt in range(prompts):
        traces = [
            trace(budget, prompt=prompt, sample=sample, tokens=tokens, acceptance=acceptance)
            for sample, budget in enumerate(budgets)
        ]
        TraceSet(traces, meta(selector=selector)).save(directory / "units" / f"0-{selector}" / f"{prompt:05d}")
    return directory
