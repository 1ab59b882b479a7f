"""Reference counting of pages: nothing is lost, nothing is handed out twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sparrow_core.engine import PagePool
from sparrow_core.errors import OutOfPagesError


class PoolMachine(RuleBasedStateMachine):
    """Any order of allocate, share and release keeps counts equal to a list of holders."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(12)
        self.holders: list[list[int]] = []

    @rule(count=st.integers(0, 5))
    def allocate(self, count: int) -> None:
        if count <= self.pool.num_free:
            self.holders.append(self.pool.allocate(count))

    @rule(index=st.integers(0, 20))
    def share(self, index: int) -> None:
        if self.holders:
            pages = self.holders[index % len(self.holders)]
            self.pool.share(pages)
            self.holders.append(list(pages))

    @rule(index=st.integers(0, 20))
    def release(self, index: int) -> None:
        if self.holders:
            self.pool.release(self.holders.pop(index % len(self.holders)))

    @invariant()
    def counts_match_holders(self) -> None:
        held = [page for pages in self.holders for page in pages]
        for page in range(self.pool.num_pages):
            assert self.pool.references(page) == held.count(page)
        assert self.pool.num_used == len(set(held))


TestPoolMachine = PoolMachine.TestCase


@given(st.integers(1, 20), st.data())
def test_allocated_pages_are_distinct(num_pages: int, data: st.DataObject) -> None:
    pool = PagePool(num_pages)
    first = pool.allocate(data.draw(st.integers(0, num_pages)))
    rest = pool.allocate(pool.num_free)
    assert sorted(first + rest) == list(range(num_pages))


def test_release_of_a_free_page_is_caught() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(pages)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(OutOfPagesError, match=r"num_pages=0"):
        PagePool(0)
