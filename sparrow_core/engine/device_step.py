"""One decode step over device buffers: budgets, forward, sampling, records, and the advance to the next step.

The state of a row (its slot) stays on the device: a step reads its input token, length and budget from buffers and
leaves the drawn token and the next length there. On CUDA every bucket of rows is captured as a CUDA graph once and
replayed; elsewhere the same function runs as it is.

Shapes: B rows, W page-table width, K recorded ids, Z stop ids, R ring entries, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow_core.cache import DecodeBatch
from sparrow_core.engine.device_sampling import SamplingMode, device_sample, key_state
from sparrow_core.engine.options import EngineOptions
from sparrow_core.engine.sequence import SequenceState
from sparrow_core.engine.session import RolloutSession
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule, length_bin

RING_STEPS = 32
"""Steps whose records stay on the device before the host fetches them as one block."""


def buckets(max_batch: int) -> tuple[int, ...]:
    """1, 2, 4, ... and ``max_batch`` itself."""
    powers = [1 << i for i in range(max_batch.bit_length()) if 1 << i < max_batch]
    return (*powers, max_batch)


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on the device; on CUDA without waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


class RowState:
    """What each row of the batch holds. A length of 0 marks an idle row, which writes nothing."""

    def __init__(self, rows: int, width: int, num_stops: int, device: torch.device) -> None:
        def whole(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.device = device
        self.tokens_B, self.states_B, self.top_k_B, self.limits_B = (whole(rows) for _ in range(4))
        self.stops_BZ = whole(rows, max(1, num_stops)).fill_(-1)
        self.lengths_B = torch.zeros(rows, dtype=torch.int32, device=device)
        self.table_BW = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self.temperatures_B = torch.ones(rows, device=device)
        self.top_p_B = torch.ones(rows, device=device)
        self.greedy_B = torch.ones(rows, dtype=torch.bool, device=device)
        self.forced_B = whole(rows).fill_(-1)
        self.chosen_budgets_B = torch.zeros(rows, dtype=torch.int32, device=device)
        """Pages decided by the host (a policy per sequence, a replayed token); 0 takes the schedule's."""

    def start(self, sequences: Sequence[SequenceState]) -> None:
        """Load rows that begin, or go on after a preemption, at their slots."""
        index_R = to_device(torch.tensor([s.slot for s in sequences]), self.device)
        params = [s.request.sampling for s in sequences]
        whole = [
            (
                s.tokens[s.num_cached],
                s.num_cached + 1,
                key_state(s.request),
                p.top_k,
                int(p.greedy),
                s.prompt_length + s.max_new_tokens,
            )
            for s, p in zip(sequences, params, strict=True)
        ]
        whole_RF = to_device(torch.tensor(whole, dtype=torch.int64), self.device)
        stops_RZ = torch.full((len(sequences), self.stops_BZ.shape[1]), -1, dtype=torch.int64)
        for row, p in enumerate(params):
            stops_RZ[row, : len(p.stop_ids)] = torch.tensor(sorted(p.stop_ids), dtype=torch.int64)
        table_RW = torch.zeros(len(sequences), self.table_BW.shape[1], dtype=torch.int32)
        for row, sequence in enumerate(sequences):
            table_RW[row, : len(sequence.pages)] = torch.tensor(sequence.pages, dtype=torch.int32)
        floats_R2 = to_device(torch.tensor([(p.temperature, p.top_p) for p in params]), self.device)
        targets = (self.tokens_B, self.lengths_B, self.states_B, self.top_k_B, self.greedy_B, self.limits_B)
        for column, target in enumerate(targets):
            target.index_copy_(0, index_R, whole_RF[:, column].to(target.dtype))
        self.temperatures_B.index_copy_(0, index_R, floats_R2[:, 0])
        self.top_p_B.index_copy_(0, index_R, floats_R2[:, 1])
        self.stops_BZ.index_copy_(0, index_R, to_device(stops_RZ, self.device))
        self.table_BW.index_copy_(0, index_R, to_device(table_RW, self.device))

    def stop(self, rows: Sequence[int]) -> None:
        self.lengths_B.index_fill_(0, to_device(torch.tensor(rows), self.device), 0)

    def set_pages(self, changes: Sequence[tuple[int, int, int]]) -> None:
        """Write (row, logical page, physical page) entries of the page table."""
        entries_3X = to_device(torch.tensor(changes, dtype=torch.int64).T.contiguous(), self.device)
        self.table_BW[entries_3X[0], entries_3X[1]] = entries_3X[2].to(torch.int32)

    def set_choices(self, forced: Sequence[int], budgets: Sequence[int]) -> None:
        both_2B = to_device(torch.tensor([list(forced), list(budgets)], dtype=torch.int64), self.device)
        self.forced_B.copy_(both_2B[0])
        self.chosen_budgets_B.copy_(both_2B[1])


class RecordRing:
    """Records of the last steps on the device, written at ``index`` and read by the host in blocks."""

    def __init__(self, rows: int, topk: int, hidden: tuple[int, torch.dtype] | None, device: torch.device) -> None:
        self.index_1 = torch.zeros(1, dtype=torch.int64, device=device)
        self.outcome_R3B = torch.zeros(RING_STEPS, 3, rows, dtype=torch.int64, device=device)
        """Token id, pages attended to, 1 where the logits were finite."""
        self.logprobs_RB = torch.zeros(RING_STEPS, rows, device=device)
        self.topk_ids_RBK = torch.zeros(RING_STEPS, rows, topk, dtype=torch.int32, device=device)
        self.topk_logprobs_RBK = torch.zeros(RING_STEPS, rows, topk, device=device)
        self.hidden_RBD: torch.Tensor | None = None
        if hidden is not None:
            self.hidden_RBD = torch.zeros(RING_STEPS, rows, hidden[0], dtype=hidden[1], device=device)

    def put(self, target: torch.Tensor, values: torch.Tensor) -> None:
        target.index_copy_(0, self.index_1, values[None].to(target.dtype))

    def advance(self) -> None:
        self.index_1.add_(1).remainder_(RING_STEPS)


@dataclass(frozen=True, slots=True)
class StepKey:
    """What fixes the operations of a step: one captured graph for each."""

    rows: int
    sparse: bool


class DeviceStep:
    """The step function over ``RowState`` and ``RecordRing``, with one captured graph per ``StepKey`` on CUDA."""

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
        self.schedule_bins = schedule.table(device)
        self.budgets_B = torch.zeros(options.max_batch, dtype=torch.int32, device=device)
        self._graphs: dict[StepKey, torch.cuda.CUDAGraph] = {}

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds ``rows`` rows."""
        return next(size for size in self.buckets if size >= rows)

    def run(self, key: StepKey) -> None:
        """Launch one step. On CUDA it returns before the step has run."""
        if self.model.device.type == "cuda":
            if key not in self._graphs:
                self._graphs[key] = self._capture(key)
            self._graphs[key].replay()
        else:
            self._plan(key)
            self._step(key)

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
        chosen_B, forced_B = state.chosen_budgets_B[:rows], state.forced_B[:rows]
        bins_B = length_bin(lengths_B, self.schedule.bin_tokens, self.schedule.num_bins)
        self.budgets_B[:rows] = torch.where(chosen_B > 0, chosen_B, self.schedule_bins[bins_B])
        pages_B = torch.minimum(self.budgets_B[:rows], (lengths_B + (self.page_size - 1)) // self.page_size)
        positions_B = (lengths_B.long() - 1).clamp(min=0)
        hidden_BD = self.model.hidden(tokens_B[:, None], positions_B[:, None])[:, 0]
        drawn, finite_B = device_sample(
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
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.state.lengths_B.zero_()
                self._step(key)
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, before in kept:
            tensor.copy_(before)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._step(key)
        return graph
