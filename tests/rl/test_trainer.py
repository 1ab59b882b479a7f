"""Whole training runs of a tiny model on one rank: what they log, and that stopping and going on changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparrow_core.errors import InputError
from sparrow_core.train_log import StepRecord, read_records
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.rl.run import dry_run, train
from sparrow_trainers.titan.checkpoints import complete_steps

Make = Callable[..., TrainConfig]


def records(config: TrainConfig) -> list[StepRecord]:
    return read_records(Path(config.output) / "metrics.jsonl")


def timeless(record: StepRecord) -> dict[str, float]:
    """Metrics that do not depend on the clock."""
    return {k: v for k, v in record.metrics.items() if not k.startswith("time/") and k != "rollout/tokens_per_second"}


def weights(config: TrainConfig) -> dict[str, torch.Tensor]:
    return load_file(Path(config.output) / "model" / "model.safetensors")


def test_a_run_logs_every_step_and_exports_a_model(make_config: Make) -> None:
    config = make_config()
    record = train(config, None)
    assert record is not None
    assert record.step == 2
    steps = records(config)
    assert [each.step for each in steps] == [0, 1, 2]
    assert [each.policy_version for each in steps] == [0, 1, 2]
    for each in steps:
        metrics = each.metrics
        assert 0 < metrics["mismatch/kept_fraction"] < 1
        assert metrics["mismatch/tail_lower"] <= metrics["mismatch/tail_exact"] <= metrics["mismatch/tail_upper"] + 1e-6
        assert metrics["update/grad_norm"] > 0
        assert 0 < metrics["time/rollout_share"] < 1
        assert sum(bin_.tokens for bin_ in each.bins) == metrics["rollout/generated_tokens"]
        assert metrics["reward_part/low"] == pytest.approx(metrics["reward/mean"])
    assert complete_steps(Path(config.output)) == [1, 2, 3]
    assert train(config, None) is None


def test_reward_rises_on_an_easy_task(make_config: Make) -> None:
    config = make_config(train__steps=12, train__prompts_per_step=6, optimizer__lr=0.01)
    train(config, None)
    rewards = [each.metrics["reward/mean"] for each in records(config)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


def test_stopped_and_gone_on_is_the_same_run_bit_for_bit(make_config: Make, tmp_path: Path) -> None:
    policy = "{type: tail_threshold, tau: 0.9, initial: 6, max_pages: 12}"
    whole = make_config(output=tmp_path / "whole", train__steps=4, policy=policy)
    train(whole, None)
    parts = [make_config(output=tmp_path / "parts", train__steps=steps, policy=policy) for steps in (1, 3, 4)]
    for config in parts:
        train(config, None)
    assert [timeless(r) for r in records(whole)] == [timeless(r) for r in records(parts[0])]
    assert [r.bins for r in records(whole)] == [r.bins for r in records(parts[0])]
    ours, theirs = weights(whole), weights(parts[0])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("tokens", [30, 90])
def test_micro_batches_do_not_change_the_update(make_config: Make, tmp_path: Path, tokens: int) -> None:
    one = make_config(output=tmp_path / "one", train__steps=2, train__micro_batch_tokens=10_000)
    many = make_config(output=tmp_path / "many", train__steps=2, train__micro_batch_tokens=tokens)
    for config in (one, many):
        train(config, None)
    for first, second in zip(records(one), records(many), strict=True):
        assert second.metrics["update/grad_norm"] == pytest.approx(first.metrics["update/grad_norm"], rel=2e-5)
        assert second.metrics["update/loss"] == pytest.approx(first.metrics["update/loss"], rel=2e-5, abs=1e-7)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_dense_rollouts_of_an_unchanged_policy_have_ratio_one(make_config: Make, temperature: float) -> None:
    config = make_config(policy="dense", rollout__temperature=temperature, train__steps=1)
    train(config, None)
    metrics = records(config)[0].metrics
    assert metrics["mismatch/tail_exact"] > 1 - 1e-3
    assert metrics["mismatch/kept_fraction"] == 1
    assert metrics["mismatch/max_abs_log_ratio"] < 1e-4
    assert metrics["update/first_drift"] < 1e-4


def test_evaluation_is_periodic_and_changes_nothing(make_config: Make, tmp_path: Path) -> None:
    plain = make_config(output=tmp_path / "plain")
    evaluated = make_config(output=tmp_path / "evaluated", evaluate__every=2, evaluate__num_prompts=3)
    for config in (plain, evaluated):
        train(config, None)
    for first, second in zip(records(plain), records(evaluated), strict=True):
        extra = {name: value for name, value in timeless(second).items() if name.startswith("eval_")}
        assert ("eval_dense/reward_mean" in extra) == (second.step % 2 == 0)
        assert {k: v for k, v in timeless(second).items() if k not in extra} == timeless(first)
    assert records(evaluated)[0].metrics["eval_dense/mismatch_kept_fraction"] == 1
    assert records(evaluated)[0].metrics["eval_sparse/mismatch_kept_fraction"] < 1


def test_the_export_serves_in_transformers(make_config: Make) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = make_config(train__steps=1)
    train(config, None)
    directory = str(Path(config.output) / "model")
    model = AutoModelForCausalLM.from_pretrained(directory)
    ids = AutoTokenizer.from_pretrained(directory)("w1 w2 w3", return_tensors="pt")["input_ids"]
    assert model(ids).logits.shape == (1, 3, 60)


def test_interrupting_saves_the_step_and_a_later_command_goes_on(make_config: Make, tmp_path: Path) -> None:
    config = make_config(train__steps=40)
    process = start(config, tmp_path / "long.yaml")
    wait_for_step(config, 2, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    done = [each.step for each in records(config)]
    assert complete_steps(Path(config.output))[-1] == len(done) < 40
    shorter = make_config(train__steps=len(done) + 1)
    train(shorter, None)
    assert [each.step for each in records(config)] == list(range(len(done) + 1))


def test_killed_at_any_moment_the_run_goes_on_exactly(make_config: Make, tmp_path: Path) -> None:
    whole = make_config(output=tmp_path / "whole", train__steps=6)
    train(whole, None)
    config = make_config(output=tmp_path / "killed", train__steps=6)
    for step in (1, 3):
        process = start(config, tmp_path / "killed.yaml")
        wait_for_step(config, step, process)
        process.kill()
        process.wait()
        steps = complete_steps(Path(config.output))
        # With asynchronous saves at every step, at most the one under way is lost.
        assert steps[-1] >= step - 1
    train(config, None)
    assert [timeless(r) for r in records(whole)] == [timeless(r) for r in records(config)]
    ours, theirs = weights(whole), weights(config)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def start(config: TrainConfig, path: Path) -> subprocess.Popen[bytes]:
    path.write_text(json.dumps(config.model_dump(mode="json")))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sparrow_core.cli", "train", str(path), "--quiet"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for_step(config: TrainConfig, step: int, process: subprocess.Popen[bytes]) -> None:
    """Until ``step`` is in the log."""
    import time

    path = Path(config.output) / "metrics.jsonl"
    until = time.monotonic() + 120
    while not (path.exists() and path.read_text().count("\n") > step):
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < until, "no step in time"
        time.sleep(0.02)


def test_dry_run_counts_and_writes_nothing(make_config: Make) -> None:
    config = make_config()
    lines = "\n".join(dry_run(config).lines())
    assert "12 prompts" in lines
    assert "16 samples per step" in lines
    assert not Path(config.output).exists()


def test_an_output_of_another_run_is_refused(make_config: Make) -> None:
    train(make_config(train__steps=1), None)
    with pytest.raises(InputError, match="other settings in rollout"):
        train(make_config(train__steps=1, rollout__seed=7), None)
    with pytest.raises(InputError, match=r"other settings in train\.prompts_per_step"):
        train(make_config(train__steps=1, train__prompts_per_step=2), None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__source": "{type: jsonl, path: /no/such.jsonl}"}, "no/such.jsonl"),
        ({"rewards__terms": "[{reward: {type: nonesuch}}]"}, "nonesuch"),
        ({"rollout__top_p": 0.9}, "top_p"),
        ({"model__dtype": "bfloat16"}, "compute_dtype"),
        ({"train__minibatches": 9}, "prompts_per_step"),
        ({"parallel__dp_shard": 3}, "torchrun"),
        ({"model__source": "/no/such/model"}, "/no/such/model"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_input_is_refused_before_anything_is_written(
    make_config: Make, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        dry_run(make_config(**changes))


def test_a_checkpoint_of_another_model_is_refused(make_config: Make, tmp_path: Path) -> None:
    first = make_config(train__steps=1, output=tmp_path / "first")
    train(first, None)
    other = make_config(train__steps=2, output=tmp_path / "other")
    (tmp_path / "other").mkdir()
    (Path(first.output) / "checkpoints").rename(tmp_path / "other" / "checkpoints")
    (Path(first.output) / "model").rename(tmp_path / "renamed")
    with pytest.raises(InputError, match="cannot be restored into this model"):
        train(
            other.model_copy(update={"model": other.model.model_copy(update={"source": str(tmp_path / "renamed")})}),
            None,
        )


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_save_that_fails_leaves_the_earlier_checkpoint(
    make_config: Make, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    config = make_config(train__steps=3, checkpoint__asynchronous=asynchronous)
    import torch.distributed.checkpoint.filesystem as storage

    written = storage._write_item

    def full(*args: Any, **kwargs: Any) -> Any:
        if complete_steps(Path(config.output)):
            raise OSError(28, "No space left on device")
        return written(*args, **kwargs)

    monkeypatch.setattr(storage, "_write_item", full)
    with pytest.raises(InputError, match=r"No space left on device.*is complete"):
        train(config, None)
    assert complete_steps(Path(config.output))
    monkeypatch.undo()
    train(config, None)
    assert [each.step for each in records(config)] == [0, 1, 2]
