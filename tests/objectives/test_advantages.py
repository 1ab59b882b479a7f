"""Advantages against their formulas in plain Python, over ranks, and in groups that teach nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import ResponseBatch
from tests.objectives.helpers import batch_of, make_batch, on_ranks, one_rank, part, select, twice

Formula = Callable[[float, list[float], list[float], list[float]], float]

CASES: list[tuple[dict[str, Any], Formula]] = [
    ({"type": "grpo"}, lambda r, group, all_, centred: (r - fmean(group)) / (pstdev(group) + 1e-6)),
    ({"type": "grpo", "eps": 0.1}, lambda r, group, all_, centred: (r - fmean(group)) / (pstdev(group) + 0.1)),
    ({"type": "dr_grpo"}, lambda r, group, all_, centred: r - fmean(group)),
    ({"type": "rloo"}, lambda r, group, all_, centred: r - (sum(group) - r) / (len(group) - 1)),
    ({"type": "batch_std"}, lambda r, group, all_, centred: (r - fmean(group)) / (pstdev(all_) + 1e-6)),
    (
        {"type": "batch_std", "std_of": "centred", "eps": 0.0},
        lambda r, group, all_, centred: (r - fmean(group)) / pstdev(centred),
    ),
]
EVERY = pytest.mark.parametrize(("config", "formula"), CASES, ids=[str(config) for config, _ in CASES])


def expected(batch: ResponseBatch, formula: Formula) -> list[float]:
    rewards, numbers = batch.reward_S.double().tolist(), batch.group_S.tolist()
    groups = [[r for r, other in zip(rewards, numbers, strict=True) if other == number] for number in numbers]
    centred = [r - fmean(group) for r, group in zip(rewards, groups, strict=True)]
    return [formula(r, group, rewards, centred) for r, group in zip(rewards, groups, strict=True)]


@EVERY
@pytest.mark.parametrize("seed", range(3))
def test_the_formula(config: dict[str, Any], formula: Formula, seed: int) -> None:
    batch = make_batch(seed)
    advantage_S = part(config).advantages(batch, one_rank)
    assert advantage_S.dtype == torch.float32
    assert advantage_S.tolist() == pytest.approx(expected(batch, formula), rel=1e-5, abs=1e-6)


@EVERY
def test_a_group_of_equal_rewards_gets_exactly_zero(config: dict[str, Any], formula: Formula) -> None:
    # 0.1 three times has a float64 mean that is not 0.1.
    batch = batch_of([2] * 6, group_S=torch.tensor([0, 0, 0, 1, 1, 1]))
    batch = replace(batch, reward_S=torch.tensor([0.1, 0.1, 0.1, 0.0, 1.0, 1.0]))
    advantage_S = part(config).advantages(batch, one_rank)
    assert advantage_S[:3].tolist() == [0.0, 0.0, 0.0]
    assert bool((advantage_S[3:] != 0).all())


@EVERY
def test_a_batch_without_any_difference_gets_zeros(config: dict[str, Any], formula: Formula) -> None:
    batch = batch_of([1, 2, 3, 4], group_S=torch.tensor([0, 0, 1, 1]), reward_S=torch.full((4,), 0.3))
    assert part(config).advantages(batch, one_rank).tolist() == [0.0] * 4


@EVERY
def test_two_ranks_give_what_one_gives(config: dict[str, Any], formula: Formula) -> None:
    batch = make_batch(5)
    shares = [range(7), range(7, batch.num_sequences)]
    split = on_ranks(2, lambda rank, reduce: part(config).advantages(select(batch, list(shares[rank])), reduce))
    assert torch.cat(split).tolist() == pytest.approx(part(config).advantages(batch, one_rank).tolist(), rel=1e-6)


@EVERY
def test_a_batch_laid_twice_has_the_same_advantages(config: dict[str, Any], formula: Formula) -> None:
    batch = make_batch(6)
    once_S, both_S = (part(config).advantages(each, one_rank) for each in (batch, twice(batch)))
    assert both_S.tolist() == pytest.approx([*once_S.tolist(), *once_S.tolist()], rel=1e-6)


@EVERY
@given(rewards=st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=8), shift=st.floats(-100, 100, width=32))
def test_groups_add_up_to_zero_and_a_shift_of_rewards_changes_nothing(
    config: dict[str, Any], formula: Formula, rewards: list[float], shift: float
) -> None:
    rule = part({**config, "eps": 0.1} if "eps" in config else config)
    batch = batch_of([1] * len(rewards), reward_S=torch.tensor(rewards))
    advantage_S = rule.advantages(batch, one_rank).double()
    size = 1 + float(advantage_S.abs().max())
    assert float(advantage_S.sum()) == pytest.approx(0, abs=1e-5 * size * len(rewards))
    spread = max(rewards) - min(rewards)
    if spread > 1e-2:
        shifted_S = rule.advantages(replace(batch, reward_S=batch.reward_S + shift), one_rank).double()
        # Adding the shift in float32 moves rewards by up to 1e-4.
        assert float((shifted_S - advantage_S).abs().max()) <= 1e-3 * size * (1 + 1 / spread)


def test_rloo_refuses_a_group_of_one() -> None:
    batch = batch_of([1, 1, 1], group_S=torch.tensor([4, 9, 4]))
    with pytest.raises(InputError, match=r"group 9 has 1 sample.*rollout\.samples_per_prompt to at least 2"):
        part("rloo").advantages(batch, one_rank)


def test_a_large_mean_costs_the_batch_deviation_no_digits() -> None:
    batch = batch_of([1] * 4, reward_S=torch.tensor([1e6, 1e6 + 1, 1e6, 1e6 + 1]))
    advantage_S = part({"type": "batch_std", "eps": 0.0}).advantages(batch, one_rank)
    assert advantage_S.tolist() == pytest.approx([-1, 1, -1, 1], rel=1e-6)
