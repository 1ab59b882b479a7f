"""One ``generate`` call: prefill, decode, sample, record, until every sequence is finished."""

from __future__ import annotations

import time

import torch

from sparrow_core.cache import DecodeBatch, PrefillBatch
from sparrow_core.contracts import SparseLayout, SparsityPolicy
from sparrow_core.engine.options import EngineOptions
from sparrow_core.engine.page_pool import PagePool
from sparrow_core.engine.records import finished_trace, is_finished, record_tokens
from sparrow_core.engine.sampling import sample
from sparrow_core.engine.scheduler import Scheduler
from sparrow_core.engine.sequence import SequenceState
from sparrow_core.engine.session import RolloutSession
from sparrow_core.engine.stats import EngineStats, attended_tokens
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.trace import Trace


class Run:
    """The state of one ``generate`` call."""

    def __init__(
        self,
        model: LanguageModel,
        session: RolloutSession,
        options: EngineOptions,
        layout: SparseLayout,
        sequences: list[SequenceState],
        pool: PagePool,
        policy: SparsityPolicy,
        policy_version: int,
    ) -> None:
        self.model = model
        self.options = options
        self.layout = layout
        self.session = session
        self.policy = policy
        self.policy_version = policy_version
        self.schedule: BudgetSchedule = policy.schedule()
        self.scheduler = Scheduler(sequences, pool, page_size=layout.page_size, max_batch=options.max_batch)
        self.stats = EngineStats(
            num_sequences=len(sequences), max_generated_tokens=sum(s.max_new_tokens for s in sequences)
        )

    def step(self) -> list[Trace]:
        finished = self._prefill_step()
        started = time.perf_counter()
        rows, copies = self.scheduler.prepare_decode()
        self.stats.preemptions = self.scheduler.num_preemptions
        self.stats.peak_pages = max(self.stats.peak_pages, self.scheduler.pool.num_used)
        if rows:
            if copies:
                self.session.cache.copy_pages([c.source for c in copies], [c.target for c in copies])
            finished += self._decode_step(rows)
            self.stats.decode_seconds += time.perf_counter() - started
        return finished

    def _prefill_step(self) -> list[Trace]:
        """Admit and prefill, up to ``prefill_chunk`` prompt tokens in all."""
        started = time.perf_counter()
        finished: list[Trace] = []
        budget = self.options.prefill_chunk
        while budget > 0:
            sequence = self.scheduler.prefilling or self.scheduler.admit()
            if sequence is None:
                break
            if sequence.in_prefill:
                # Chunks start at multiples of prefill_chunk whatever else runs, so a prompt's pages are reproducible.
                chunk = min(self.options.prefill_chunk, sequence.prompt_length - sequence.num_cached)
                hidden_D = self._prefill_chunk(sequence, chunk)
                budget -= chunk
                if sequence.in_prefill:
                    continue
                self.scheduler.keep_prompt(sequence, hidden_D)
            else:
                kept_D = self.scheduler.prompt_hidden(sequence)
                assert kept_D is not None
                hidden_D = kept_D
            if sequence.num_generated == 0:
                dense = self.scheduler.num_pages(sequence.prompt_length)
                logits_1V = self.model.logits(hidden_D[None])
                finished += self._sample([sequence], logits_1V, hidden_D[None], [dense])
        self.stats.prefill_seconds += time.perf_counter() - started
        return finished

    def _prefill_chunk(self, sequence: SequenceState, chunk: int) -> torch.Tensor:
        """Run ``chunk`` prompt tokens through the model; the last one's final hidden state ``[D]``."""
        start, device = sequence.num_cached, self.model.device
        end = start + chunk
        batch = PrefillBatch(
            cu_seqlens_B1=torch.tensor([0, chunk], dtype=torch.int32, device=device),
            lengths_B=torch.tensor([end], dtype=torch.int32, device=device),
            page_table_BW=torch.tensor([sequence.pages], dtype=torch.int32, device=device),
            max_length=end,
            max_chunk=chunk,
        )
        self.session.begin(batch, all_dense=True)
        tokens_1T = torch.tensor([sequence.tokens[start:end]], device=device)
        positions_1T = torch.arange(start, end, device=device)[None]
        hidden_1TD = self.model.hidden(tokens_1T, positions_1T)
        sequence.num_cached = end
        self.stats.prompt_tokens += chunk
        return hidden_1TD[0, -1]

    def _decode_step(self, rows: list[SequenceState]) -> list[Trace]:
        lengths = [s.num_cached + 1 for s in rows]
        budgets = self._budgets(rows, lengths)
        size = self.layout.page_size
        pages = [min(b, -(-n // size)) for b, n in zip(budgets, lengths, strict=True)]
        logits_BV, hidden_BD = self._decode_forward(rows, lengths, budgets)
        self.stats.decode_steps += 1
        for sequence, length, count in zip(rows, lengths, pages, strict=True):
            sequence.num_cached += 1
            self.stats.attended_tokens += attended_tokens(length, count, size)
            self.stats.dense_tokens += length
        fresh = [i for i, s in enumerate(rows) if s.num_cached == len(s.tokens)]
        self.stats.replayed_tokens += len(rows) - len(fresh)
        if not fresh:
            return []
        return self._sample([rows[i] for i in fresh], logits_BV[fresh], hidden_BD[fresh], [pages[i] for i in fresh])

    def _budgets(self, rows: list[SequenceState], lengths: list[int]) -> list[int]:
        """Pages per row: as drawn with when replaying, else the policy's own choice, else the schedule's."""
        lengths_B = torch.tensor(lengths)
        chosen_B = self.policy.budgets(lengths_B, [s.request.key for s in rows])
        if chosen_B is None:
            chosen_B = self.schedule.pages_at(lengths_B)
        budgets: list[int] = chosen_B.tolist()
        for i, sequence in enumerate(rows):
            if budgets[i] < self.schedule.min_pages:
                raise InputError(
                    f"policy {self.policy.config.type} gave a budget of {budgets[i]} pages; "
                    f"it must be at least sink + recent + 1 = {self.schedule.min_pages}"
                )
            if sequence.is_replaying:
                budgets[i] = sequence.records.pages[lengths[i] - sequence.prompt_length]
        return budgets

    def _decode_forward(
        self, rows: list[SequenceState], lengths: list[int], budgets: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[B, V]`` and final hidden states ``[B, D]`` of one decode step."""
        device = self.model.device
        size = self.layout.page_size
        max_length, max_budget = max(lengths), max(budgets)
        all_dense = all(b * size >= n for n, b in zip(lengths, budgets, strict=True))
        num_rows, at = len(rows), list(range(len(rows)))
        if self.options.batch_invariant:
            # Row = slot with empty rows between, and bounds that no row sets: every product keeps its shape.
            num_rows, at = self.options.max_batch, [s.slot for s in rows]
            max_length, max_budget = self.model.context_length, max(self.schedule.pages)
            all_dense = self.schedule.is_dense and all_dense
        width = self.scheduler.num_pages(max_length)
        lengths_B = torch.zeros(num_rows, dtype=torch.int32)
        budgets_B = torch.full((num_rows,), self.schedule.min_pages, dtype=torch.int32)
        table_BW = torch.zeros(num_rows, width, dtype=torch.int32)
        tokens_B1 = torch.zeros(num_rows, 1, dtype=torch.int64)
        positions_B1 = torch.zeros(num_rows, 1, dtype=torch.int64)
        lengths_B[at] = torch.tensor(lengths, dtype=torch.int32)
        budgets_B[at] = torch.tensor(budgets, dtype=torch.int32)
        tokens_B1[at, 0] = torch.tensor([s.tokens[s.num_cached] for s in rows])
        positions_B1[at, 0] = torch.tensor([s.num_cached for s in rows])
        for row, sequence in zip(at, rows, strict=True):
            table_BW[row, : len(sequence.pages)] = torch.tensor(sequence.pages, dtype=torch.int32)
        batch = DecodeBatch(
            lengths_B=lengths_B.to(device),
            page_table_BW=table_BW.to(device),
            budgets_B=budgets_B.to(device),
            max_length=max_length,
            max_budget=min(max_budget, width),
        )
        self.session.begin(batch, all_dense=all_dense)
        hidden_BD = self.model.hidden(tokens_B1.to(device), positions_B1.to(device))[:, 0]
        return self.model.logits(hidden_BD)[at], hidden_BD[at]

    def _sample(
        self, rows: list[SequenceState], logits_BV: torch.Tensor, hidden_BD: torch.Tensor, pages: list[int]
    ) -> list[Trace]:
        """Draw (or force) each row's next token, record it, and return the traces of rows that finished."""
        forced = [s.request.forced_ids[i] if (i := s.num_generated) < len(s.request.forced_ids) else None for s in rows]
        drawn = sample(
            logits_BV,
            [s.request.sampling for s in rows],
            [s.request.key for s in rows],
            [len(s.tokens) for s in rows],
            forced=forced,
            topk_logprobs=self.options.topk_logprobs,
        )
        record_tokens(rows, drawn, pages, hidden_BD if self.options.keep_hidden else None)
        self.stats.generated_tokens += len(rows)
        finished = [s for s, token in zip(rows, forced, strict=True) if is_finished(s, was_forced=token is not None)]
        for sequence in finished:
            self.scheduler.finish(sequence)
            self.stats.finished += 1
        return [finished_trace(s, policy_version=self.policy_version) for s in finished]
