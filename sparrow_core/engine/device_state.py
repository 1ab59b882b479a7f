"""What a device step reads and writes: the state of its rows, and the ring of records that the host fetches in blocks.

Shapes: B rows, W page-table width, K recorded ids, Z stop ids, R ring entries, D hidden size, X changed entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow_core.engine.device_sampling import key_state
from sparrow_core.engine.sequence import SequenceState

RING_STEPS = 32
"""Steps whose records stay on the device: two blocks, of which the host reads one while the other is written."""

MOST_STEPS_AHEAD = RING_STEPS // 2


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
        self.forced_RB = whole(RING_STEPS, rows).fill_(-1)
        """Id to take in place of the draw at each ring entry, -1 for none."""
        self.chosen_RB = torch.zeros(RING_STEPS, rows, dtype=torch.int32, device=device)
        """Pages decided by the host (a policy per sequence, a replayed token); 0 takes the schedule's."""

    def reset(self) -> None:
        """Every row idle and nothing decided by the host."""
        self.lengths_B.zero_()
        self.forced_RB.fill_(-1)
        self.chosen_RB.zero_()

    def start(self, sequences: Sequence[SequenceState]) -> None:
        """Load rows that begin, or go on after a preemption, at their slots."""
        index_X = to_device(torch.tensor([s.slot for s in sequences]), self.device)
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
        whole_XF = to_device(torch.tensor(whole, dtype=torch.int64), self.device)
        stops_XZ = torch.full((len(sequences), self.stops_BZ.shape[1]), -1, dtype=torch.int64)
        for row, p in enumerate(params):
            stops_XZ[row, : len(p.stop_ids)] = torch.tensor(sorted(p.stop_ids), dtype=torch.int64)
        table_XW = torch.zeros(len(sequences), self.table_BW.shape[1], dtype=torch.int32)
        for row, sequence in enumerate(sequences):
            table_XW[row, : len(sequence.pages)] = torch.tensor(sequence.pages, dtype=torch.int32)
        floats_X2 = to_device(torch.tensor([(p.temperature, p.top_p) for p in params]), self.device)
        targets = (self.tokens_B, self.lengths_B, self.states_B, self.top_k_B, self.greedy_B, self.limits_B)
        for column, target in enumerate(targets):
            target.index_copy_(0, index_X, whole_XF[:, column].to(target.dtype))
        self.temperatures_B.index_copy_(0, index_X, floats_X2[:, 0])
        self.top_p_B.index_copy_(0, index_X, floats_X2[:, 1])
        self.stops_BZ.index_copy_(0, index_X, to_device(stops_XZ, self.device))
        self.table_BW.index_copy_(0, index_X, to_device(table_XW, self.device))

    def stop(self, rows: Sequence[int]) -> None:
        self.lengths_B.index_fill_(0, to_device(torch.tensor(rows), self.device), 0)

    def set_pages(self, changes: Sequence[tuple[int, int, int]]) -> None:
        """Write (row, logical page, physical page) entries of the page table."""
        entries_3X = to_device(torch.tensor(changes, dtype=torch.int64).T.contiguous(), self.device)
        self.table_BW[entries_3X[0], entries_3X[1]] = entries_3X[2].to(torch.int32)

    def set_choices(self, entry: int, forced_XB: torch.Tensor, budgets_XB: torch.Tensor) -> None:
        """Forced ids and chosen budgets of X steps, the first of which is ring entry ``entry``."""
        both_2XB = to_device(torch.stack([forced_XB.long(), budgets_XB.long()]), self.device)
        end = entry + forced_XB.shape[0]
        self.forced_RB[entry:end].copy_(both_2XB[0])
        self.chosen_RB[entry:end].copy_(both_2XB[1])


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

    @property
    def tensors(self) -> list[torch.Tensor]:
        records = [self.outcome_R3B, self.logprobs_RB, self.topk_ids_RBK, self.topk_logprobs_RBK]
        return records if self.hidden_RBD is None else [*records, self.hidden_RBD]

    def put(self, target: torch.Tensor, values: torch.Tensor) -> None:
        target.index_copy_(0, self.index_1, values[None].to(target.dtype))

    def advance(self) -> None:
        self.index_1.add_(1).remainder_(RING_STEPS)


@dataclass(frozen=True, slots=True)
class BlockRecords:
    """Records of X consecutive steps on the host; overwritten by the next block but one."""

    outcome_X3B: torch.Tensor
    logprobs_XB: torch.Tensor
    topk_ids_XBK: torch.Tensor
    topk_logprobs_XBK: torch.Tensor
    hidden_XBD: torch.Tensor | None


class RingReader:
    """Copies halves of the ring to the host; on CUDA into pinned memory on a stream of its own."""

    def __init__(self, ring: RecordRing) -> None:
        self._ring = ring
        self._on_cuda = ring.index_1.device.type == "cuda"
        self._halves = [
            [torch.empty(MOST_STEPS_AHEAD, *t.shape[1:], dtype=t.dtype, pin_memory=self._on_cuda) for t in ring.tensors]
            for _ in range(2)
        ]
        if self._on_cuda:
            self._stream = torch.cuda.Stream(ring.index_1.device)  # type: ignore[no-untyped-call]
            self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]

    def start(self, half: int, steps: int) -> None:
        """Copy the first ``steps`` entries of a half once the steps launched so far have written them."""
        if not self._on_cuda:
            self._copy(half, steps)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._copy(half, steps)
            self._copied[half].record()

    def _copy(self, half: int, steps: int) -> None:
        first = half * MOST_STEPS_AHEAD
        for target, source in zip(self._halves[half], self._ring.tensors, strict=True):
            target[:steps].copy_(source[first : first + steps], non_blocking=True)

    def wait(self, half: int, steps: int) -> BlockRecords:
        """The half's records, when their copy is done."""
        if self._on_cuda:
            self._copied[half].synchronize()
        outcome, logprobs, topk_ids, topk_logprobs, *hidden = (t[:steps] for t in self._halves[half])
        return BlockRecords(outcome, logprobs, topk_ids, topk_logprobs, hidden[0] if hidden else None)
