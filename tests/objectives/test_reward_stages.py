"""Reward stages against their definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sparrow_core.errors import InputError
from tests.objectives.helpers import batch_of, objective, one_rank, part


def dapo_punishment(length: int, limit: int, cache: int) -> float:
    """R_length of the DAPO paper, case by case."""
    if length <= limit - cache:
        return 0.0
    if length <= limit:
        return ((limit - cache) - length) / cache
    return -1.0


@pytest.mark.parametrize(
    ("options", "limit", "cache", "scale"),
    [
        ({"max_length": 10, "cache": 4}, 10, 4, 1.0),
        ({"cache": 5}, 20, 5, 1.0),
        ({}, 20, 4, 1.0),
        ({"max_length": 10, "cache": 10, "scale": 0.5}, 10, 10, 0.5),
        ({"max_length": 3}, 3, 1, 1.0),
    ],
)
def test_overlong_follows_the_three_cases(options: dict[str, Any], limit: int, cache: int, scale: float) -> None:
    lengths = list(range(1, 21))
    batch = batch_of(lengths, reward_S=torch.linspace(-1, 1, 20), max_tokens=20)
    shaped_S = part({"type": "overlong", **options}).shape(batch)
    expected = [
        reward + scale * dapo_punishment(length, limit, cache)
        for reward, length in zip(batch.reward_S.tolist(), lengths, strict=True)
    ]
    assert shaped_S.dtype == torch.float32
    assert shaped_S.tolist() == pytest.approx(expected, abs=1e-6)


def test_overlong_refuses_a_cache_longer_than_the_limit() -> None:
    batch = batch_of([2, 4], max_tokens=6)
    with pytest.raises(InputError, match=r"cache=7 tokens before max_length=6; give at most 6"):
        part({"type": "overlong", "cache": 7}).shape(batch)


@pytest.mark.parametrize("reward", [0.0, -0.5])
def test_dler_gives_cut_responses_the_configured_reward(reward: float) -> None:
    truncated_S = torch.tensor([True, False, True, False])
    batch = batch_of([5, 5, 2, 3], truncated_S=truncated_S, reward_S=torch.tensor([1.0, 0.25, -1.0, 2.0]))
    assert part({"type": "dler", "reward": reward}).shape(batch).tolist() == [reward, 0.25, reward, 2.0]


def test_dler_with_a_length_takes_longer_ones_as_cut() -> None:
    batch = batch_of([3, 4, 5], reward_S=torch.ones(3))
    assert part({"type": "dler", "max_length": 4}).shape(batch).tolist() == [1.0, 1.0, 0.0]


def test_stages_apply_in_order_before_the_advantage() -> None:
    batch = batch_of([4, 10], reward_S=torch.tensor([1.0, 1.0]), truncated_S=torch.tensor([False, True]))
    dler, overlong = part("dler"), part({"type": "overlong", "cache": 5})
    base = replace(objective(), advantage=part("dr_grpo"))
    after = replace(base, reward_stages=(dler, overlong)).prepare(batch, one_rank)
    before = replace(base, reward_stages=(overlong, dler)).prepare(batch, one_rank)
    assert after.reward_S.tolist() == [1.0, -1.0]
    assert before.reward_S.tolist() == [1.0, 0.0]
    assert after.advantage_S.tolist() == [1.0, -1.0]
    assert before.metrics["objective/reward_mean"] == 0.5
