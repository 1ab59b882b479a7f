"""Configurations of small distillation runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparrow_core.config import load_as
from sparrow_trainers.distill.run_config import DistillRunConfig
from tests.rl.conftest import NUM_WORDS, model_directory, prompts_file, settings  # noqa: F401


def write_prompts(path: Path, count: int, first: int) -> Path:
    texts = [
        " ".join(f"w{(11 * i + (5 + i % 3) * k) % NUM_WORDS}" for k in range(12 + i % 7))
        for i in range(first, first + count)
    ]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def distill_settings(model_directory: Path, tmp_path: Path) -> dict[str, Any]:  # noqa: F811
    """Dotted keys of a small run under a budget that is too small."""
    train, held_out = write_prompts(tmp_path / "a.jsonl", 40, 0), write_prompts(tmp_path / "b.jsonl", 12, 100)
    return {
        "model.source": model_directory,
        "model.device": "cpu",
        "attention.page_size": 4,
        "attention.dense_layers": "[0]",
        "policy": "{type: static, pages: 4}",
        "rollout.max_tokens": 32,
        "rollout.max_batch": 16,
        "mismatch.bin_tokens": 16,
        "mismatch.num_bins": 3,
        "data.source": f"{{type: jsonl, path: {train}}}",
        "distill.adapter.rank": 8,
        "distill.optimizer.lr": 0.005,
        "distill.reference_every": 2,
        "train.steps": 3,
        "train.prompts_per_step": 4,
        "evaluate.data.source": f"{{type: jsonl, path: {held_out}}}",
        "checkpoint.interval": 1,
        "output": tmp_path / "run",
    }


@pytest.fixture
def make_distill(distill_settings: dict[str, Any]) -> Callable[..., DistillRunConfig]:
    def make(**changes: Any) -> DistillRunConfig:
        keys = distill_settings | {key.replace("__", "."): value for key, value in changes.items()}
        given = [f"{key}={value}" for key, value in keys.items() if value is not None]
        return load_as(DistillRunConfig, None, given)

    return make
