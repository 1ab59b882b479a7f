"""The warm start: the same weights for the same seeds, a directory that loads, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparrow_core.config import load_as
from sparrow_core.errors import InputError
from sparrow_core.measure.progress import Progress
from sparrow_core.model import load_model
from sparrow_trainers.tasks.config import WarmStartConfig
from sparrow_trainers.tasks.warm_start import warm_start

PUZZLES = "{{type: signposts, size: 64, seed: {seed}, places: 6, min_signs: 3, max_signs: 5, fillers: 0, min_hops: 1, max_hops: 2}}"


def config(output: Path, *changes: str) -> WarmStartConfig:
    keys = [
        "model.dim=16",
        "model.ffn_dim=16",
        "model.heads=2",
        "model.head_dim=8",
        f"data.source={PUZZLES.format(seed=0)}",
        f"held_out.source={PUZZLES.format(seed=1)}",
        "num_held_out=8",
        "batch=8",
        "max_steps=40",
        "check_every=10",
        "target_reward=0.02",
        "optimizer.lr=0.01",
        f"output={output}",
    ]
    return load_as(WarmStartConfig, None, [*keys, *changes])


def test_the_model_loads_and_is_the_same_for_the_same_seeds(tmp_path: Path) -> None:
    first, second = (warm_start(config(tmp_path / name), Progress(None)) for name in ("first", "second"))
    assert first.expected_reward >= 0.02
    assert (first.steps, first.expected_reward) == (second.steps, second.expected_reward)
    ours, theirs = (load_file(made.directory / "model.safetensors") for made in (first, second))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    model = load_model(str(first.directory))
    assert model.tokenizer.decode(model.tokenizer.encode("start at03"), skip_special_tokens=True) == "start at03"
    assert model.eos_ids == {model.tokenizer.eos_token_id}


def test_an_existing_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        warm_start(config(tmp_path), Progress(None))


def test_a_target_that_is_not_reached_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="below target_reward=1"):
        warm_start(config(tmp_path / "new", "target_reward=1", "max_steps=2"), Progress(None))
    assert not (tmp_path / "new").exists()


def test_words_that_training_has_not_are_refused(tmp_path: Path) -> None:
    more = PUZZLES.format(seed=1).replace("places: 6", "places: 30")
    with pytest.raises(InputError, match="has words that no prompt"):
        warm_start(config(tmp_path / "new", f"held_out.source={more}"), Progress(None))


def test_a_context_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.context=8"):
        warm_start(config(tmp_path / "new", "model.context=8"), Progress(None))
