"""Admission, prompt sharing, copy-on-write and preemption, without a model."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_core.engine import PagePool, Request, SamplingParams
from sparrow_core.engine.scheduler import PageCopy, Scheduler
from sparrow_core.engine.sequence import SequenceState
from sparrow_core.trace import SampleKey


def make_sequences(prompts: list[tuple[int, int, int]]) -> list[SequenceState]:
    """From (prompt tokens, samples, new tokens) per prompt."""
    sequences = []
    for index, (length, samples, new) in enumerate(prompts):
        ids = tuple(range(length))
        for sample in range(samples):
            request = Request(SampleKey(0, 0, index, sample), ids, SamplingParams(max_tokens=new))
            sequences.append(SequenceState(request, len(sequences), new, list(ids)))
    return sequences


class FakeCache:
    """Which token of which sequence a physical slot holds, so that sharing and copying can be checked."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.slots: list[list[object]] = [[None] * page_size for _ in range(num_pages)]
        self.page_size = page_size

    def copy(self, copies: list[PageCopy]) -> None:
        old = [list(self.slots[c.source]) for c in copies]
        for content, copy in zip(old, copies, strict=True):
            self.slots[copy.target] = content

    def write(self, sequence: SequenceState, position: int) -> None:
        page = sequence.pages[position // self.page_size]
        self.slots[page][position % self.page_size] = self.token(sequence, position)

    def token(self, sequence: SequenceState, position: int) -> object:
        key = sequence.request.key
        in_prompt = position < sequence.prompt_length
        return (key.prompt, position) if in_prompt else (key.prompt, key.sample, position)

    def check(self, sequence: SequenceState) -> None:
        for position in range(sequence.num_cached):
            page = sequence.pages[position // self.page_size]
            assert self.slots[page][position % self.page_size] == self.token(sequence, position)


def run_to_end(scheduler: Scheduler, cache: FakeCache, *, chunk: int = 3) -> list[SequenceState]:
    """Drive the scheduler as the engine does; every finished sequence in the order it ended."""
    finished: list[SequenceState] = []
    for _ in range(10_000):
        if scheduler.done:
            return finished
        while (sequence := scheduler.prefilling or scheduler.admit()) is not None:
            if sequence.in_prefill:
                end = min(sequence.num_cached + chunk, sequence.prompt_length)
                for position in range(sequence.num_cached, end):
                    cache.write(sequence, position)
                sequence.num_cached = end
                if sequence.in_prefill:
                    break
                scheduler.keep_prompt(sequence, torch.zeros(1))
            else:
                assert scheduler.prompt_hidden(sequence) is not None
            if sequence.num_generated == 0:
                take_token(scheduler, sequence, finished)
        rows, copies = scheduler.prepare_decode()
        cache.copy(copies)
        assert len({s.slot for s in rows}) == len(rows)
        for sequence in rows:
            page = sequence.pages[sequence.num_cached // cache.page_size]
            assert scheduler.pool.references(page) == 1, "a token is written to a shared page"
            cache.write(sequence, sequence.num_cached)
        for sequence in rows:
            sequence.num_cached += 1
            cache.check(sequence)
            if sequence.num_cached == len(sequence.tokens):
                take_token(scheduler, sequence, finished)
    raise AssertionError("the scheduler made no progress")


def take_token(scheduler: Scheduler, sequence: SequenceState, finished: list[SequenceState]) -> None:
    sequence.tokens.append(0)
    if sequence.num_generated == sequence.max_new_tokens:
        scheduler.finish(sequence)
        finished.append(sequence)


prompt_specs = st.lists(st.tuples(st.integers(1, 14), st.integers(1, 4), st.integers(1, 12)), min_size=1, max_size=4)


@given(prompts=prompt_specs, page_size=st.integers(1, 5), max_batch=st.integers(1, 5), spare=st.integers(0, 12))
@settings(max_examples=300, deadline=None)
def test_every_sequence_finishes_whole_whatever_the_pool_and_batch(
    prompts: list[tuple[int, int, int]], page_size: int, max_batch: int, spare: int
) -> None:
    least = max(-(-(length + new - 1) // page_size) for length, _, new in prompts)
    pool = PagePool(least + spare)
    sequences = make_sequences(prompts)
    scheduler = Scheduler(sequences, pool, page_size=page_size, max_batch=max_batch)
    finished = run_to_end(scheduler, FakeCache(pool.num_pages, page_size))
    assert sorted(s.order for s in finished) == list(range(len(sequences)))
    assert all(s.num_generated == s.max_new_tokens for s in finished)
    assert pool.num_used == 0, "pages leaked"


def test_samples_of_a_prompt_share_its_pages_and_prefill_it_once() -> None:
    sequences = make_sequences([(8, 4, 2)])
    pool = PagePool(64)
    scheduler = Scheduler(sequences, pool, page_size=4, max_batch=4)
    first = scheduler.admit()
    assert first is not None
    first.num_cached = 8
    scheduler.keep_prompt(first, torch.zeros(1))
    others = [scheduler.admit() for _ in range(3)]
    assert all(s is not None and s.pages == first.pages and not s.in_prefill for s in others)
    assert pool.num_used == 2


def test_a_write_to_a_shared_partial_page_copies_it_once_per_sharer() -> None:
    sequences = make_sequences([(6, 3, 3)])
    scheduler = Scheduler(sequences, PagePool(64), page_size=4, max_batch=3)
    first = scheduler.admit()
    assert first is not None
    first.num_cached = 6
    scheduler.keep_prompt(first, torch.zeros(1))
    for _ in range(2):
        sequence = scheduler.admit()
        assert sequence is not None
        scheduler.prompt_hidden(sequence)
    rows, copies = scheduler.prepare_decode()
    assert len(rows) == 3
    assert len(copies) == 2, "the last holder keeps the page"
    assert len({s.pages[1] for s in rows}) == 3
    assert len({s.pages[0] for s in rows}) == 1


def test_out_of_pages_preempts_the_sequence_submitted_last() -> None:
    sequences = make_sequences([(4, 1, 9), (4, 1, 9)])
    scheduler = Scheduler(sequences, PagePool(3), page_size=4, max_batch=2)
    cache = FakeCache(3, 4)
    finished = run_to_end(scheduler, cache)
    assert scheduler.num_preemptions >= 1
    assert [s.order for s in finished] == [0, 1]
