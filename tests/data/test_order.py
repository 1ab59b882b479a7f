from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_trainers.data import PromptOrder

lengths = st.integers(1, 40)
seeds = st.integers(0, 2**32)
takes = st.lists(st.integers(0, 25), max_size=12)


@given(lengths, seeds, takes)
def test_every_epoch_takes_every_prompt_once(length: int, seed: int, counts: list[int]) -> None:
    order = PromptOrder(length, seed)
    taken = [index for count in counts for index in order.take(count)]
    taken += order.take(length - order.position)
    epochs = [taken[start : start + length] for start in range(0, len(taken), length)]
    assert all(sorted(epoch) == list(range(length)) for epoch in epochs)


@given(lengths, seeds, takes)
def test_how_prompts_are_split_into_takes_does_not_matter(length: int, seed: int, counts: list[int]) -> None:
    pieces, whole = PromptOrder(length, seed), PromptOrder(length, seed)
    assert [index for count in counts for index in pieces.take(count)] == whole.take(sum(counts))
    assert pieces.state_dict() == whole.state_dict()


@given(lengths, seeds, takes, takes)
def test_a_saved_state_goes_on_identically(length: int, seed: int, before: list[int], after: list[int]) -> None:
    order = PromptOrder(length, seed)
    for count in before:
        order.take(count)
    resumed = PromptOrder(length, seed)
    resumed.load_state_dict(json.loads(json.dumps(order.state_dict())))
    assert [order.take(count) for count in after] == [resumed.take(count) for count in after]
    assert order.state_dict() == resumed.state_dict()


@given(lengths, seeds, st.integers(0, 100))
def test_unshuffled_counts_through(length: int, seed: int, count: int) -> None:
    assert PromptOrder(length, seed, shuffle=False).take(count) == [n % length for n in range(count)]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order = PromptOrder(50, 3)
    first, second = order.take(50), order.take(50)
    assert first != second
    assert PromptOrder(50, 4).take(50) != first
    assert order.epoch == 2
    assert order.position == 0


def test_the_order_of_a_seed_stays() -> None:
    """Resuming a run of an older checkpoint relies on it."""
    assert PromptOrder(8, 0).take(8) == [2, 4, 3, 6, 5, 0, 1, 7]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (PromptOrder(9, 0), r"length=8 but now it is 9; the prompts have changed"),
        (PromptOrder(8, 1), r"seed=0 but now it is 1; set data\.seed back"),
        (PromptOrder(8, 0, shuffle=False), r"shuffle=True but now it is False; set data\.shuffle back"),
    ],
    ids=["length", "seed", "shuffle"],
)
def test_a_state_of_another_order_is_refused(other: PromptOrder, says: str) -> None:
    order = PromptOrder(8, 0)
    order.take(5)
    with pytest.raises(InputError, match=says):
        other.load_state_dict(order.state_dict())
    assert other.position == 0


@pytest.mark.parametrize("damage", [{"position": 8}, {"position": -1}, {"epoch": -1}], ids=str)
def test_a_damaged_state_is_refused(damage: dict[str, int]) -> None:
    order = PromptOrder(8, 0)
    with pytest.raises(InputError, match="damaged"):
        order.load_state_dict(order.state_dict() | damage)


def test_no_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="0 prompts"):
        PromptOrder(0, 0)


def test_a_negative_count_is_an_error() -> None:
    with pytest.raises(ValueError, match="count=-1"):
        PromptOrder(3, 0).take(-1)
