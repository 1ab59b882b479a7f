"""One ``generate`` call on the device engine: blocks of decode steps, launched ahead of what the host has seen.

The host gives pages for a block of steps, launches them without waiting and reads the records of the block before
while they run. A row that ends goes idle on the device; the host learns of it from the records and only then gives
its pages and its slot to another sequence, so the device never waits for the host. Everything the host does to pages
and rows is queued behind the steps launched so far, in one stream.

Shapes: B rows, X steps of a block.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from sparrow_core.contracts import SparsityPolicy
from sparrow_core.engine.device_state import MOST_STEPS_AHEAD, BlockRecords
from sparrow_core.engine.device_step import DeviceStep, StepKey
from sparrow_core.engine.records import finished_trace, record_steps
from sparrow_core.engine.run import Run
from sparrow_core.engine.scheduler import PageCopy
from sparrow_core.engine.sequence import SequenceState
from sparrow_core.engine.stats import attended_tokens
from sparrow_core.trace import Trace

_IN_FLIGHT = 2
"""Blocks launched and not yet read: one runs while the host works on the other."""


def chooses_per_sequence(policy: SparsityPolicy) -> bool:
    """Whether the policy may decide budgets at every step, which the host then has to ask it for."""
    return type(policy).budgets is not SparsityPolicy.budgets


@dataclass(frozen=True, slots=True)
class Row:
    sequence: SequenceState
    slot: int
    steps: int
    """Steps of the block that this row may take."""


@dataclass(frozen=True, slots=True)
class Block:
    half: int
    steps: int
    rows: list[Row]


class DeviceRun(Run):
    """Prefill and first tokens as in ``Run``; decode steps in blocks on the device."""

    def __init__(self, step: DeviceStep, *args: Any) -> None:
        super().__init__(*args)
        self._step = step
        self._chooses = chooses_per_sequence(self.policy)
        self._most_steps = 1 if self._chooses else self.options.steps_ahead
        self._most_blocks = 1 if self._chooses else _IN_FLIGHT
        self._blocks: deque[Block] = deque()
        self._half = 0
        self._on_device: dict[int, SequenceState] = {}
        """The sequence of each row that was started, by slot."""
        self._known_pages: dict[int, int] = {}
        """Page-table entries that the device has of each of these rows."""
        self._has_choices = [False, False]
        step.begin(self.schedule)

    def step(self) -> list[Trace]:
        """Admit, launch one block if there is anything to run, and read the oldest block when it is due."""
        finished = self._prefill_steps()
        started = time.perf_counter()
        launched = self._launch()
        if self._blocks and (not launched or len(self._blocks) == self._most_blocks):
            finished += self._read()
        self.stats.decode_seconds += time.perf_counter() - started
        return finished

    def _prefill_steps(self) -> list[Trace]:
        """One prefill step for each decode step of a block, as far as sequences can be admitted."""
        finished: list[Trace] = []
        for _ in range(self._most_steps):
            before = self.stats.prompt_tokens
            finished += self._prefill_step()
            if self.stats.prompt_tokens == before:
                break
        return finished

    def _launch(self) -> bool:
        """Launch a block; False when no row can take a step, or not before the blocks in flight are read."""
        left = max((s.steps_left for s in self.scheduler.decoding), default=0)
        steps = min(left, self._most_steps)
        if steps == 0:
            return False
        free = self.scheduler.pool.num_free
        while steps > 1 and self.scheduler.missing_pages(steps) > free:
            steps //= 2
        if self._blocks and self.scheduler.missing_pages(steps) > free:
            return False
        sequences, copies = self.scheduler.prepare_decode(steps)
        self.stats.preemptions = self.scheduler.num_preemptions
        self.stats.peak_pages = max(self.stats.peak_pages, self.scheduler.pool.num_used)
        rows = [Row(s, s.slot, n) for s in sequences if (n := min(steps, s.steps_left)) > 0]
        self._update_rows(rows, copies)
        if not rows:
            return False
        lengths_XB = self._lengths(rows, steps)
        budgets_XB = self._set_choices(rows, lengths_XB)
        self._step.run_block(self._key(rows, lengths_XB, budgets_XB), self._half, steps)
        for row in rows:
            row.sequence.in_flight += row.steps
        self._blocks.append(Block(self._half, steps, rows))
        self._half = 1 - self._half
        return True

    def _update_rows(self, rows: list[Row], copies: list[PageCopy]) -> None:
        """Tell the device of copied pages, preempted rows, rows that begin, and new pages of those that go on."""
        if copies:
            self.session.cache.copy_pages([c.source for c in copies], [c.target for c in copies])
        preempted = [slot for slot, sequence in self._on_device.items() if sequence.slot != slot]
        if preempted:
            self._step.state.stop(preempted)
            for slot in preempted:
                del self._on_device[slot]
        begin, changes = [], []
        for row in rows:
            pages = row.sequence.pages
            if row.slot not in self._on_device:
                begin.append(row.sequence)
                self._on_device[row.slot] = row.sequence
            else:
                known = self._known_pages[row.slot]
                changes += [(row.slot, i, pages[i]) for i in range(known, len(pages))]
            self._known_pages[row.slot] = len(pages)
        if begin:
            self._step.state.start(begin)
        if changes:
            self._step.state.set_pages(changes)

    def _lengths(self, rows: list[Row], steps: int) -> torch.Tensor:
        """int64 ``[X, B]`` context lengths of the block's steps if no row stops early; 0 where a row takes none."""
        lengths_XB = torch.zeros(steps, self.options.max_batch, dtype=torch.int64)
        for row in rows:
            first = row.sequence.num_cached + row.sequence.in_flight + 1
            lengths_XB[: row.steps, row.slot] = torch.arange(first, first + row.steps)
        return lengths_XB

    def _set_choices(self, rows: list[Row], lengths_XB: torch.Tensor) -> torch.Tensor:
        """Forced ids and budgets that the host decides, sent to the device; budgets ``[X, B]`` of every step."""
        forced_XB, chosen_XB = torch.full_like(lengths_XB, -1), torch.zeros_like(lengths_XB)
        if self._chooses:
            sequences = [row.sequence for row in rows]
            at = [row.slot for row in rows]
            chosen_XB[0, at] = torch.tensor(self._budgets(sequences, lengths_XB[0, at].tolist()))
        for row in rows:
            self._replay(row, forced_XB, chosen_XB)
        has_choices = bool((forced_XB >= 0).any() or chosen_XB.any())
        if has_choices or self._has_choices[self._half]:
            entry = self._half * MOST_STEPS_AHEAD
            whole_XB = (MOST_STEPS_AHEAD, lengths_XB.shape[1])
            sent = [torch.full(whole_XB, -1), torch.zeros(whole_XB, dtype=torch.int64)]
            for target, values in zip(sent, (forced_XB, chosen_XB), strict=True):
                target[: len(values)] = values
            self._step.state.set_choices(entry, *sent)
        self._has_choices[self._half] = has_choices
        return torch.where(chosen_XB > 0, chosen_XB, self.schedule.pages_at(lengths_XB).long())

    def _replay(self, row: Row, forced_XB: torch.Tensor, chosen_XB: torch.Tensor) -> None:
        """Tokens that are known already, under the budgets they were drawn with, and the request's forced ids."""
        sequence = row.sequence
        first = sequence.num_cached + sequence.in_flight + 1
        prompt, forced_ids = sequence.prompt_length, sequence.request.forced_ids
        last_decided = max(len(sequence.tokens), prompt + len(forced_ids))
        for step, position in enumerate(range(first, min(first + row.steps, last_decided))):
            if position < len(sequence.tokens):
                forced_XB[step, row.slot] = sequence.tokens[position]
                chosen_XB[step, row.slot] = sequence.records.pages[position - prompt]
            else:
                forced_XB[step, row.slot] = forced_ids[position - prompt]

    def _key(self, rows: list[Row], lengths_XB: torch.Tensor, budgets_XB: torch.Tensor) -> StepKey:
        bucket = self._step.bucket(max(row.slot for row in rows) + 1)
        if self.options.batch_invariant:
            return StepKey(bucket, sparse=self._chooses or not self.schedule.is_dense)
        return StepKey(bucket, sparse=bool((budgets_XB * self.layout.page_size < lengths_XB).any()))

    def _read(self) -> list[Trace]:
        """Take in the records of the oldest block; the traces of sequences that it finished."""
        block = self._blocks.popleft()
        records = self._step.reader.wait(block.half, block.steps)
        finished: list[Trace] = []
        live_steps = 0
        for row in block.rows:
            row.sequence.in_flight -= row.steps
            if row.sequence.finish_reason is not None:
                continue
            live_steps = max(live_steps, self._take(row, records))
            if row.sequence.finish_reason is not None:
                del self._on_device[row.slot]
                self.scheduler.finish(row.sequence)
                self.stats.finished += 1
                finished.append(finished_trace(row.sequence, policy_version=self.policy_version))
        self.stats.decode_steps += live_steps
        return finished

    def _take(self, row: Row, records: BlockRecords) -> int:
        """Record a row's steps; the number it took before it ended."""
        sequence, size = row.sequence, self.layout.page_size
        replayed = min(row.steps, len(sequence.tokens) - 1 - sequence.num_cached)
        drawn = record_steps(sequence, records, row.slot, range(replayed, row.steps))
        taken = replayed + drawn
        for pages in records.outcome_X3B[:taken, 1, row.slot].tolist():
            sequence.num_cached += 1
            self.stats.attended_tokens += attended_tokens(sequence.num_cached, pages, size)
            self.stats.dense_tokens += sequence.num_cached
        self.stats.replayed_tokens += replayed
        self.stats.generated_tokens += drawn
        return taken
