"""Minibatches, shares of ranks and micro-batches: every sequence once, groups whole, limits kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparrow_trainers.rl.batches import by_rank, micro_batches, minibatches

GROUPS = st.lists(st.integers(0, 9), min_size=1, max_size=60)
LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=60)


@given(GROUPS, st.integers(1, 12), st.integers(0, 5))
def test_every_sequence_is_in_one_minibatch_and_groups_stay_whole(groups: list[int], count: int, seed: int) -> None:
    parts = minibatches(groups, count, seed=seed)
    assert sorted(index for part in parts for index in part) == list(range(len(groups)))
    for group in set(groups):
        assert sum(any(groups[index] == group for index in part) for part in parts) == 1
    sizes = [len({groups[index] for index in part}) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == min(count, len(set(groups)))


def test_one_minibatch_keeps_the_order_and_many_depend_on_the_seed() -> None:
    groups = [g for g in range(16) for _ in range(2)]
    assert minibatches(groups, 1, seed=3) == [list(range(32))]
    assert minibatches(groups, 4, seed=1) == minibatches(groups, 4, seed=1)
    assert minibatches(groups, 4, seed=1) != minibatches(groups, 4, seed=2)


@given(LENGTHS, st.integers(1, 8))
def test_ranks_share_all_sequences_about_evenly(lengths: list[int], ranks: int) -> None:
    shares = by_rank(range(len(lengths)), lengths, ranks)
    assert sorted(index for share in shares for index in share) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths)
    assert all(share == sorted(share) for share in shares)


@given(LENGTHS, st.integers(1, 700))
def test_micro_batches_keep_the_limit_and_the_order(lengths: list[int], limit: int) -> None:
    parts = micro_batches(range(len(lengths)), lengths, limit)
    assert [index for part in parts for index in part] == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or sum(lengths[index] for index in part) <= limit


def test_no_sequence_gives_no_micro_batch() -> None:
    assert micro_batches([], [], 10) == []
