"""What is special to this policy, on a synthetic model whose tail is known."""

import pytest
from sparrow_proportional import ProportionalConfig, ProportionalPolicy

from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.testing.simulator import SyntheticMismatch, simulate


def make(**settings: float) -> ProportionalPolicy:
    return ProportionalPolicy(ProportionalConfig(num_bins=4, **settings), SparseLayout())


def test_budgets_are_a_share_of_the_length_with_a_floor() -> None:
    assert make(share=0.125, floor=20).schedule().pages == (20, 32, 47, 63)


@pytest.mark.parametrize("share", [0.02, 1.0], ids=["too few pages", "too many pages"])
def test_the_share_ends_where_the_worst_bin_just_meets_tau(share: float) -> None:
    model, policy = SyntheticMismatch(), make(share=share, floor=4)
    for step in range(25):
        policy.observe(simulate(model, policy.schedule(), seed=step))
    worst = min(model.bin_tail(index, pages) for index, pages in enumerate(policy.schedule().pages))
    assert 0.84 < worst < 0.91


def test_a_floor_that_selects_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="at least 4 pages"):
        make(floor=3)
