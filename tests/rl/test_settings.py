"""Runs under the settings that change how a step is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparrow_core.train_log import StepRecord, read_records
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.rl.run import train

Make = Callable[..., TrainConfig]


def run(config: TrainConfig) -> list[StepRecord]:
    train(config, None)
    return read_records(Path(config.output) / "metrics.jsonl")


def test_bfloat16_compute_keeps_float32_masters_and_a_close_loss(make_config: Make, tmp_path: Path) -> None:
    full = run(make_config(output=tmp_path / "full", train__steps=2))
    half = run(make_config(output=tmp_path / "half", train__steps=2, memory__compute_dtype="bfloat16"))
    for each in half:
        assert each.metrics["update/first_drift"] < 0.2
        assert each.metrics["mismatch/acceptance_mean"] > 0.5
    assert half[0].metrics["update/grad_norm"] == pytest.approx(full[0].metrics["update/grad_norm"], rel=1.0)


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_activation_checkpointing_changes_no_number(make_config: Make, tmp_path: Path, kind: str) -> None:
    plain = run(make_config(output=tmp_path / "plain", train__steps=2))
    saving = run(make_config(output=tmp_path / "saving", train__steps=2, memory__activation_checkpoint=kind))
    for first, second in zip(plain, saving, strict=True):
        assert second.metrics["update/grad_norm"] == pytest.approx(first.metrics["update/grad_norm"], rel=1e-5)
        assert second.metrics["reward/mean"] == first.metrics["reward/mean"]


def test_minibatches_and_epochs_make_as_many_updates(make_config: Make) -> None:
    steps = run(make_config(train__steps=2, train__minibatches=2, train__epochs=2))
    assert [each.metrics["update/optimizer_steps"] for each in steps] == [4, 4]
    assert steps[0].metrics["objective/update_kl_k3"] > 0


def test_a_reference_penalty_is_zero_until_the_policy_moves(make_config: Make) -> None:
    steps = run(make_config(objective__penalties="[{type: kl, estimator: k3, coefficient: 0.1}]"))
    penalties = [each.metrics["objective/penalty_kl"] for each in steps]
    assert abs(penalties[0]) < 1e-6
    assert penalties[-1] > 1e-5


def test_dynamic_sampling_draws_until_there_are_enough_groups(make_config: Make) -> None:
    steps = run(
        make_config(
            objective__dynamic_sampling="{enabled: true, max_rounds: 2}",
            rollout__max_tokens=1,
            rollout__samples_per_prompt=2,
        )
    )
    for each in steps:
        metrics = each.metrics
        assert metrics["groups/kept"] <= 4
        assert (
            metrics["groups/drawn"]
            == metrics["groups/kept"] + metrics["groups/zero_variance"] + metrics["groups/surplus"]
        )
    assert any(each.metrics["groups/rounds"] == 2 for each in steps)


def test_a_step_without_a_group_to_train_on_leaves_the_policy(make_config: Make) -> None:
    constant = "[{reward: {type: function, path: 'tests.rl.scoring:nothing'}, name: zero}]"
    steps = run(make_config(objective__dynamic_sampling="{enabled: true, max_rounds: 2}", rewards__terms=constant))
    assert [each.policy_version for each in steps] == [0, 0, 0]
    assert all(each.metrics["groups/exhausted"] == 1 for each in steps)
    assert all("update/loss" not in each.metrics for each in steps)


def test_a_failing_reward_is_counted_and_the_run_goes_on(make_config: Make) -> None:
    raising = "[{reward: {type: function, path: 'tests.rl.scoring:raises_on_w1'}, name: fragile}]"
    steps = run(make_config(rewards__terms=raising, rewards__value_on_error=-1.0))
    failed = sum(each.metrics["reward/failed"] for each in steps)
    assert failed > 0
    assert sum(each.metrics.get("reward/failed_raised", 0) for each in steps) == failed
