"""One decode step over device buffers: budgets, forward, sampling, records, and the advance to the next step.

The state of a row (its slot) stays on the device: a step reads its input token, length and budget from buffers and
leaves the drawn token and the next length there. On CUDA every bucket of rows is captured as a CUDA graph once and
replayed; elsewhere the same function runs as it is.

Shapes: B rows, W page-table width, K recorded ids, Z stop ids, R ring entries, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from sparrow_core.cache import DecodeBatch
from sparrow_core.engine.compiled import CompiledStep
from sparrow_core.engine.device_sampling import SamplingMode, device_sample
from sparrow_core.engine.device_state import MOST_STEPS_AHEAD, RING_STEPS, RecordRing, RingReader, RowState
from sparrow_core.engine.options import EngineOptions
from sparrow_core.engine.session import RolloutSession
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule, length_bin

COMPILER: str | Callable[..., Any] = "inductor"
"""The backend of ``torch.compile``."""

__all__ = ["RING_STEPS", "DeviceStep", "StepKey", "buckets"]


def buckets(max_batch: int) -> tuple[int, ...]:
    """1, 2, 4, ... and ``max_batch`` itself."""
    powers = [1 << i for i in range(max_batch.bit_length()) if 1 << i < max_batch]
    return (*powers, max_batch)


@dataclass(frozen=True, slots=True)
class StepKey:
    """What fixes the operations of a step: one captured graph for each."""

    rows: int
    sparse: bool


class DeviceStep:
    """The step function over ``RowState`` and ``RecordRing``, with one captured graph per ``StepKey`` on CUDA.

    Args:
        width: pages of the longest sequence, W.
        max_budget: most pages any sparse layer attends to.
        num_stops: most stop ids of any request, Z.
    """

    def __init__(
        self,
        model: LanguageModel,
        session: RolloutSession,
        options: EngineOptions,
        schedule: BudgetSchedule,
        mode: SamplingMode,
        *,
        width: int,
        max_budget: int,
        num_stops: int,
    ) -> None:
        self.model, self.session, self.options, self.schedule, self.mode = model, session, options, schedule, mode
        self.page_size = session.cache.page_size
        self.width, self.max_budget = width, min(max_budget, width)
        self.buckets = (options.max_batch,) if options.batch_invariant else buckets(options.max_batch)
        device = model.device
        self.state = RowState(options.max_batch, width, num_stops, device)
        hidden = (int(model.config["hidden_size"]), model.dtype) if options.keep_hidden else None
        self.ring = RecordRing(options.max_batch, min(options.topk_logprobs, model.vocab_size), hidden, device)
        self.reader = RingReader(self.ring)
        self.schedule_bins = schedule.table(device)
        self.budgets_B = torch.zeros(options.max_batch, dtype=torch.int32, device=device)
        self._weights = _addresses(model)
        self._compiled = CompiledStep(model, session, COMPILER) if options.compile else None
        self._graphs: dict[StepKey, torch.cuda.CUDAGraph] = {}

    def serves(
        self,
        session: RolloutSession,
        schedule: BudgetSchedule,
        mode: SamplingMode,
        *,
        width: int,
        max_budget: int,
        num_stops: int,
    ) -> bool:
        """Whether ``begin`` can take this rollout as it is, with the graphs captured so far."""
        return (
            session is self.session
            and _rules(schedule) == _rules(self.schedule)
            and mode == self.mode
            and width <= self.width
            and min(max_budget, width) <= self.max_budget
            and num_stops <= self.state.stops_BZ.shape[1]
            and _addresses(self.model) == self._weights
        )

    def begin(self, schedule: BudgetSchedule) -> None:
        """Take the budgets of a new rollout, in place, and leave every row idle."""
        self.schedule = schedule
        self.schedule_bins.copy_(schedule.table())
        self.state.reset()

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds ``rows`` rows."""
        return next(size for size in self.buckets if size >= rows)

    def run_block(self, key: StepKey, half: int, steps: int) -> None:
        """Launch ``steps`` steps whose records go to a half of the ring, and the copy of these to the host."""
        self.ring.index_1.fill_(half * MOST_STEPS_AHEAD)
        for _ in range(steps):
            self.run(key)
        self.reader.start(half, steps)

    def run(self, key: StepKey) -> None:
        """Launch one step. On CUDA it returns before the step has run."""
        if self.model.device.type == "cuda":
            if key not in self._graphs:
                self._graphs[key] = self._capture(key)
            self._graphs[key].replay()
        else:
            self._plan(key)
            with self._compilation():
                self._step(key)

    def _compilation(self) -> AbstractContextManager[None]:
        return nullcontext() if self._compiled is None else self._compiled.installed()

    def _plan(self, key: StepKey) -> None:
        rows = key.rows
        batch = DecodeBatch(
            lengths_B=self.state.lengths_B[:rows],
            page_table_BW=self.state.table_BW[:rows],
            budgets_B=self.budgets_B[:rows],
            max_length=self.width * self.page_size,
            max_budget=self.max_budget,
        )
        self.session.begin(batch, all_dense=not key.sparse)

    def _step(self, key: StepKey) -> None:
        state, ring, rows = self.state, self.ring, key.rows
        lengths_B, tokens_B = state.lengths_B[:rows], state.tokens_B[:rows]
        chosen_B, forced_B = (t.index_select(0, ring.index_1)[0, :rows] for t in (state.chosen_RB, state.forced_RB))
        bins_B = length_bin(lengths_B, self.schedule.bin_tokens, self.schedule.num_bins)
        self.budgets_B[:rows] = torch.where(chosen_B > 0, chosen_B, self.schedule_bins[bins_B])
        pages_B = torch.minimum(self.budgets_B[:rows], (lengths_B + (self.page_size - 1)) // self.page_size)
        positions_B = (lengths_B.long() - 1).clamp(min=0)
        hidden_BD = self.model.hidden(tokens_B[:, None], positions_B[:, None])[:, 0]
        draw = device_sample if self._compiled is None else self._compiled.sample
        drawn, finite_B = draw(
            self.model.logits(hidden_BD),
            self.mode,
            temperatures_B=state.temperatures_B[:rows],
            greedy_B=state.greedy_B[:rows],
            top_p_B=state.top_p_B[:rows],
            top_k_B=state.top_k_B[:rows],
            states_B=state.states_B[:rows],
            positions_B=lengths_B.long(),
            forced_B=forced_B,
            topk_logprobs=self.options.topk_logprobs,
        )
        ring.put(ring.outcome_R3B[..., :rows], torch.stack([drawn.ids_B, pages_B.long(), finite_B.long()]))
        ring.put(ring.logprobs_RB[:, :rows], drawn.logprobs_B)
        ring.put(ring.topk_ids_RBK[:, :rows], drawn.topk_ids_BK)
        ring.put(ring.topk_logprobs_RBK[:, :rows], drawn.topk_logprobs_BK)
        if ring.hidden_RBD is not None:
            ring.put(ring.hidden_RBD[:, :rows], hidden_BD)
        ring.advance()
        stopped_B = (drawn.ids_B[:, None] == state.stops_BZ[:rows]).any(-1) & (forced_B < 0)
        ended_B = stopped_B | (lengths_B + 1 >= state.limits_B[:rows]) | (lengths_B == 0)
        tokens_B.copy_(drawn.ids_B)
        lengths_B.copy_(torch.where(ended_B, 0, lengths_B + 1))

    def _capture(self, key: StepKey) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream with every row idle, so that nothing is written, then capture."""
        kept = [(t, t.clone()) for t in (self.state.lengths_B, self.state.tokens_B, self.ring.index_1)]
        self._plan(key)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with self._compilation():
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self.state.lengths_B.zero_()
                    self._step(key)
                    self.ring.index_1.copy_(kept[-1][1])
            torch.cuda.current_stream().wait_stream(stream)
            for tensor, before in kept:
                tensor.copy_(before)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            pool = next(iter(self._graphs.values())).pool() if self._graphs else None
            # Other threads may use CUDA meanwhile; only this one is captured.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self._step(key)
        return graph


def _rules(schedule: BudgetSchedule) -> tuple[int, ...]:
    """What of a schedule is part of the step's operations; the pages are read from a table."""
    return schedule.num_bins, schedule.bin_tokens, schedule.page_size, schedule.sink_pages, schedule.recent_pages


def _addresses(model: LanguageModel) -> tuple[int, ...]:
    """Where the weights lie: a captured graph reads them there, so new values in place are seen and moved ones not."""
    return tuple(weight.data_ptr() for weight in model.module.parameters())
