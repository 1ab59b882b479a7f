"""Which sequences run, and the pages they hold: admission, prompt sharing, copy-on-write, preemption.

Samples of one prompt share its pages: the first one admitted is prefilled, a ``PromptPages`` entry keeps the
prompt's pages and last hidden state while samples of it wait, and later ones start from there. When pages
run out, entries are dropped first, then the sequence submitted last is preempted: its pages are released and
its tokens kept; on re-admission they are fed again under the budgets they were drawn with.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

import torch

from sparrow_core.engine.page_pool import PagePool
from sparrow_core.engine.sequence import SequenceState


@dataclass(slots=True)
class PromptPages:
    pages: list[int]
    last_hidden_D: torch.Tensor


@dataclass(frozen=True, slots=True)
class PageCopy:
    source: int
    target: int


class Scheduler:
    """Host-side state of one ``generate`` call."""

    def __init__(self, sequences: list[SequenceState], pool: PagePool, *, page_size: int, max_batch: int) -> None:
        self.pool = pool
        self.page_size = page_size
        self.waiting = deque(sequences)
        self.running: list[SequenceState] = []
        self.prompts: dict[int, PromptPages] = {}
        self.num_preemptions = 0
        self._free_slots = list(range(max_batch - 1, -1, -1))
        self._waiting_per_prompt = Counter(s.request.key.prompt for s in sequences)

    @property
    def done(self) -> bool:
        return not self.waiting and not self.running

    @property
    def prefilling(self) -> SequenceState | None:
        """The sequence in prefill; at most one is at any time."""
        return next((s for s in self.running if s.in_prefill), None)

    def num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def admit(self) -> SequenceState | None:
        """Admit the first waiting sequence if a slot and enough pages are free and no prefill is under way."""
        if not self.waiting or not self._free_slots or self.prefilling is not None:
            return None
        sequence = self.waiting[0]
        prompt = sequence.request.key.prompt
        if not self._has_room(sequence):
            if self.running:
                return None
            self._drop_prompts()
            assert self._has_room(sequence), "a request larger than the pool was let in"
        self.waiting.popleft()
        self._waiting_per_prompt[prompt] -= 1
        sequence.slot = self._free_slots.pop()
        if entry := self.prompts.get(prompt):
            self.pool.share(entry.pages)
            sequence.pages = list(entry.pages)
            sequence.num_cached = sequence.prompt_length
        else:
            sequence.pages = self.pool.allocate(self.num_pages(sequence.prompt_length))
            sequence.num_cached = 0
        self.running.append(sequence)
        return sequence

    def _has_room(self, sequence: SequenceState) -> bool:
        """Room for the prompt and one token more, so that the first step cannot preempt it again."""
        entry = self.prompts.get(sequence.request.key.prompt)
        tokens = sequence.prompt_length + min(1, sequence.max_new_tokens - 1)
        needed = 1 if entry else self.num_pages(tokens)
        return self.pool.num_free >= needed

    def keep_prompt(self, sequence: SequenceState, last_hidden_D: torch.Tensor) -> None:
        """After a prefill: keep the prompt's pages if more samples of it wait."""
        prompt = sequence.request.key.prompt
        if self._waiting_per_prompt[prompt] > 0 and prompt not in self.prompts:
            pages = sequence.pages[: self.num_pages(sequence.prompt_length)]
            self.pool.share(pages)
            self.prompts[prompt] = PromptPages(list(pages), last_hidden_D)

    def prompt_hidden(self, sequence: SequenceState) -> torch.Tensor | None:
        """Last hidden state of the kept prompt this sequence was admitted on; drops the entry when unneeded."""
        prompt = sequence.request.key.prompt
        entry = self.prompts.get(prompt)
        if entry is None:
            return None
        if self._waiting_per_prompt[prompt] == 0:
            self.pool.release(self.prompts.pop(prompt).pages)
        return entry.last_hidden_D

    @property
    def decoding(self) -> list[SequenceState]:
        """Running sequences past their prompt, in slot order."""
        return sorted((s for s in self.running if not s.in_prefill), key=lambda s: s.slot)

    def prepare_decode(self, steps: int = 1) -> tuple[list[SequenceState], list[PageCopy]]:
        """Sequences of the next ``steps`` decode steps in slot order, each with pages of its own for their tokens.

        Also the page copies to make, all at once, before the first step (writes to shared pages).
        """
        copies: list[PageCopy] = []
        for sequence in sorted(self.decoding, key=lambda s: s.order):
            for index in self._pages_ahead(sequence, steps):
                if sequence.slot >= 0:
                    self._give_page(sequence, index, copies)
        return self.decoding, copies

    def missing_pages(self, steps: int) -> int:
        """Most pages that ``prepare_decode`` may take from the pool."""
        return sum(
            index >= len(sequence.pages) or self.pool.references(sequence.pages[index]) > 1
            for sequence in self.decoding
            for index in self._pages_ahead(sequence, steps)
        )

    def _pages_ahead(self, sequence: SequenceState, steps: int) -> range:
        """Logical pages that the tokens of the sequence's next ``steps`` steps go to."""
        first = sequence.num_cached + sequence.in_flight
        end = first + min(steps, sequence.steps_left)
        return range(first // self.page_size, self.num_pages(end)) if end > first else range(0)

    def finish(self, sequence: SequenceState) -> None:
        self._vacate(sequence)

    def _give_page(self, sequence: SequenceState, index: int, copies: list[PageCopy]) -> None:
        """Give ``sequence`` sole ownership of its logical page ``index``, or preempt it."""
        while True:
            is_new = index == len(sequence.pages)
            if not is_new and self.pool.references(sequence.pages[index]) == 1:
                return
            if self.pool.num_free:
                break
            if self.prompts:
                self._drop_prompts(1)
                continue
            # Sequences served before this one have a lower order, so none of them can be the victim.
            victim = max(self.running, key=lambda s: s.order)
            self._preempt(victim)
            if victim is sequence:
                return
        page = self.pool.allocate(1)[0]
        if is_new:
            sequence.pages.append(page)
            return
        copies.append(PageCopy(sequence.pages[index], page))
        self.pool.release([sequence.pages[index]])
        sequence.pages[index] = page

    def _drop_prompts(self, count: int | None = None) -> None:
        """Let go of the oldest ``count`` kept prompts (all when None)."""
        for prompt in list(self.prompts)[:count]:
            self.pool.release(self.prompts.pop(prompt).pages)

    def _preempt(self, sequence: SequenceState) -> None:
        assert sequence.in_flight == 0, "a sequence with steps in flight cannot be preempted"
        self._vacate(sequence)
        sequence.num_cached = 0
        position = sum(1 for s in self.waiting if s.order < sequence.order)
        self.waiting.insert(position, sequence)
        self._waiting_per_prompt[sequence.request.key.prompt] += 1
        self.num_preemptions += 1

    def _vacate(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.pages)
        sequence.pages = []
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
