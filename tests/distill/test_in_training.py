"""Distillation within RL: the dense policy moves as without it, stopping and going on changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from sparrow_core.config import load_as
from sparrow_core.errors import InputError
from sparrow_core.model import load_model
from sparrow_core.train_log import read_records
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.distill.adapter_training import AdapterTraining
from sparrow_trainers.rl.run import dry_run, train
from tests.rl.test_ranks import check_equal, losses, on_two_ranks

ADAPTER = "{adapter: {rank: 4}, optimizer: {lr: 0.001}, reference_every: 2}"
Make = Callable[..., TrainConfig]


@pytest.fixture
def make(settings: dict[str, Any]) -> Make:
    def make_config(**changes: Any) -> TrainConfig:
        keys = settings | {"policy": "{type: static, pages: 4}"} | {k.replace("__", "."): v for k, v in changes.items()}
        return load_as(TrainConfig, None, [f"{key}={value}" for key, value in keys.items()])

    return make_config


def weights(config: TrainConfig, name: str) -> dict[str, torch.Tensor]:
    return load_file(Path(config.output) / name)


def check_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_dense_update_is_the_same_bit_for_bit_with_an_adapter_beside_it(make: Make, tmp_path: Path) -> None:
    """In the first step the adapter's B is zero, so that rollouts agree; the update must too."""
    plain, adapted = (
        make(output=tmp_path / "plain", train__steps=1),
        make(output=tmp_path / "adapted", train__steps=1, distill=ADAPTER),
    )
    for config in (plain, adapted):
        train(config, None)
    check_same(weights(plain, "model/model.safetensors"), weights(adapted, "model/model.safetensors"))
    adapter = weights(adapted, "adapter/adapter_model.safetensors")
    assert max(float(each.abs().max()) for name, each in adapter.items() if "lora_B" in name) > 0


def test_stopped_and_gone_on_is_the_same_run(make: Make, tmp_path: Path) -> None:
    whole = make(output=tmp_path / "whole", distill=ADAPTER)
    train(whole, None)
    for steps in (1, 3):
        parts = make(output=tmp_path / "parts", distill=ADAPTER, train__steps=steps)
        train(parts, None)
    for name in ("model/model.safetensors", "adapter/adapter_model.safetensors"):
        check_same(weights(whole, name), weights(parts, name))
    for record in read_records(tmp_path / "whole" / "metrics.jsonl"):
        assert 0 < record.metrics["time/distill_share"] < 1
        assert record.metrics["distill/grad_norm"] > 0
        assert ("reference/acceptance_mean" in record.metrics) == (record.step % 2 == 0)


def test_two_ranks_train_policy_and_adapter_as_one_does(make: Make, tmp_path: Path) -> None:
    """float32 sums in another order: relative 1e-3 after a policy update and an adapter update, rewards exactly."""
    one, two = (make(output=tmp_path / name, train__steps=2, distill=ADAPTER) for name in ("one", "two"))
    train(one, None)
    done = on_two_ranks(two, tmp_path / "two.yaml")
    assert done.returncode == 0, done.stderr[-2000:]
    check_equal(losses(one), losses(two), 2)
    names = ("distill/loss", "distill/forward_kl", "distill/sparse_ppo", "distill/grad_norm", "distill/tokens")
    ours, theirs = (read_records(Path(config.output) / "metrics.jsonl") for config in (one, two))
    for a, b in zip(ours, theirs, strict=True):
        assert [b.metrics[n] for n in names] == pytest.approx([a.metrics[n] for n in names], rel=1e-3, abs=1e-5)
    assert theirs[0].metrics["reference/forward_kl"] == pytest.approx(ours[0].metrics["reference/forward_kl"], rel=1e-3)


def test_a_dry_run_counts_adapter_optimizer_and_merged_weights(make: Make) -> None:
    plain, adapted = make(), make(distill="{adapter: {rank: 4, target_modules: [q_proj, down_proj]}}")
    before, plan = dry_run(plain), dry_run(adapted)
    model = load_model(adapted.model.source)
    assert adapted.distill is not None
    training = AdapterTraining(model, adapted.attention, adapted.distill, lambda total: total)
    for parameter in training.adapter.parameters():
        parameter.grad = torch.zeros_like(parameter)
    training.optimizer.step()
    held = [t for p in training.adapter.parameters() for t in (p, p.grad) if t is not None]
    held += [t for state in training.optimizer.state.values() for t in state.values() if t.dim()]
    assert plan.adapter_bytes == sum(t.numel() * t.element_size() for t in held) > 0
    own = {p.data_ptr() for p in model.module.parameters()}
    merged = [p for p in training.rollout_model.module.parameters() if p.data_ptr() not in own]
    assert plan.merged_bytes == sum(p.numel() * p.element_size() for p in merged) > 0
    assert plan.total_bytes == before.total_bytes + plan.adapter_bytes + plan.merged_bytes
    assert "adapter and its optimizer" in " ".join(plan.lines())
    assert "adapter" not in " ".join(before.lines())


def test_the_exact_support_is_refused(make: Make) -> None:
    with pytest.raises((InputError, ValidationError), match="set support=topk"):
        make(distill="{support: exact}")
