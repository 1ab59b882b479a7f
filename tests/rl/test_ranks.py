"""Two gloo ranks: sharded weights and tensor parallelism give the losses of one rank; checkpoints change ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparrow_core.train_log import read_records
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.rl.run import train

Make = Callable[..., TrainConfig]


def on_two_ranks(config: TrainConfig, path: Path) -> subprocess.CompletedProcess[str]:
    path.write_text(json.dumps(config.model_dump(mode="json")))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "sparrow_core.cli", "train", str(path), "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def losses(config: TrainConfig) -> list[tuple[float, float, float]]:
    records = read_records(Path(config.output) / "metrics.jsonl")
    names = ("update/loss", "update/grad_norm", "reward/mean")
    return [(r.metrics[names[0]], r.metrics[names[1]], r.metrics[names[2]]) for r in records]


def check_equal(ours: list[tuple[float, float, float]], theirs: list[tuple[float, float, float]], num: int) -> None:
    """float32 sums in another order: relative 1e-3 of the gradient norm after a few updates, rewards exactly."""
    assert len(ours) == len(theirs) == num
    for (loss, norm, reward), (loss_2, norm_2, reward_2) in zip(ours, theirs, strict=True):
        assert loss_2 == pytest.approx(loss, rel=1e-3, abs=1e-5)
        assert norm_2 == pytest.approx(norm, rel=1e-3)
        assert reward_2 == pytest.approx(reward, abs=1e-6)


@pytest.mark.parametrize("parallel", ["{dp_shard: 2}", "{tp: 2}", "{dp_replicate: 2, dp_shard: 1}"])
def test_two_ranks_give_the_losses_of_one(make_config: Make, tmp_path: Path, parallel: str) -> None:
    one = make_config(output=tmp_path / "one", train__steps=2)
    train(one, None)
    two = make_config(output=tmp_path / "two", train__steps=2, parallel=parallel)
    done = on_two_ranks(two, tmp_path / "two.yaml")
    assert done.returncode == 0, done.stderr[-2000:]
    check_equal(losses(one), losses(two), 2)


def test_a_checkpoint_of_two_ranks_goes_on_with_one(make_config: Make, tmp_path: Path) -> None:
    one = make_config(output=tmp_path / "one", train__steps=3)
    train(one, None)
    two = make_config(output=tmp_path / "two", train__steps=2, parallel="{dp_shard: 2}")
    done = on_two_ranks(two, tmp_path / "two.yaml")
    assert done.returncode == 0, done.stderr[-2000:]
    train(make_config(output=tmp_path / "two", train__steps=3), None)
    check_equal(losses(one), losses(two), 3)


def test_bad_input_ends_all_ranks(make_config: Make, tmp_path: Path) -> None:
    config = make_config(parallel="{dp_shard: 3}")
    done = on_two_ranks(config, tmp_path / "bad.yaml")
    assert done.returncode != 0
    assert "2 ranks cannot be laid out" in done.stderr
