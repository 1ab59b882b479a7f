"""Keeping what was drawn, deciding when a sequence ends, and turning it into a trace."""

from __future__ import annotations

import torch

from sparrow_core.engine.device_state import BlockRecords
from sparrow_core.engine.sampling import SampledBatch, not_finite
from sparrow_core.engine.sequence import SequenceState
from sparrow_core.trace import Trace


def record_tokens(
    rows: list[SequenceState], drawn: SampledBatch, pages: list[int], hidden_BD: torch.Tensor | None
) -> None:
    """Append each row's drawn token and its record. ``pages`` are those attended to while predicting it."""
    ids, logprobs = drawn.ids_B.tolist(), drawn.logprobs_B.tolist()
    topk_ids, topk_logprobs = drawn.topk_ids_BK.to("cpu", torch.int32), drawn.topk_logprobs_BK.cpu()
    hidden = None if hidden_BD is None else hidden_BD.cpu()
    for row, sequence in enumerate(rows):
        records = sequence.records
        sequence.tokens.append(ids[row])
        records.logprobs.append(logprobs[row])
        records.topk_ids.append(topk_ids[row : row + 1])
        records.topk_logprobs.append(topk_logprobs[row : row + 1])
        records.pages.append(pages[row])
        if hidden is not None:
            records.hidden.append(hidden[row : row + 1])


def record_steps(sequence: SequenceState, records: BlockRecords, row: int, steps: range) -> int:
    """Append what a row of a block drew at ``steps`` until the sequence ends; the number of tokens appended.

    Raises FloatingPointError naming the sequence and position when logits were not finite.
    """
    ids, pages, finite = records.outcome_X3B[steps.start : steps.stop, :, row].unbind(1)
    count = 0
    for token, is_finite in zip(ids.tolist(), finite.tolist(), strict=True):
        if not is_finite:
            raise not_finite(sequence.request.key, len(sequence.tokens))
        was_forced = sequence.num_generated < len(sequence.request.forced_ids)
        sequence.tokens.append(token)
        count += 1
        if is_finished(sequence, was_forced=was_forced):
            break
    if count == 0:
        return 0
    kept, taken = sequence.records, slice(steps.start, steps.start + count)
    kept.logprobs += records.logprobs_XB[taken, row].tolist()
    kept.pages += pages[:count].tolist()
    kept.topk_ids.append(records.topk_ids_XBK[taken, row].clone())
    kept.topk_logprobs.append(records.topk_logprobs_XBK[taken, row].clone())
    if records.hidden_XBD is not None:
        kept.hidden.append(records.hidden_XBD[taken, row].clone())
    return count


def is_finished(sequence: SequenceState, *, was_forced: bool) -> bool:
    """Set the finish reason if the last token ends the sequence. A forced stop id does not."""
    if not was_forced and sequence.tokens[-1] in sequence.request.sampling.stop_ids:
        sequence.finish_reason = "stop"
    elif sequence.num_generated == sequence.max_new_tokens:
        cut_by_context = sequence.max_new_tokens < sequence.request.sampling.max_tokens
        sequence.finish_reason = "context" if cut_by_context else "length"
    return sequence.finish_reason is not None


def finished_trace(sequence: SequenceState, *, policy_version: int) -> Trace:
    assert sequence.finish_reason is not None
    request, records = sequence.request, sequence.records
    return Trace(
        key=request.key,
        prompt_ids=torch.tensor(request.prompt_ids, dtype=torch.int32),
        token_ids=torch.tensor(sequence.tokens[sequence.prompt_length :], dtype=torch.int32),
        logprobs=torch.tensor(records.logprobs, dtype=torch.float32),
        topk_ids=torch.cat(records.topk_ids),
        topk_logprobs=torch.cat(records.topk_logprobs),
        pages=torch.tensor(records.pages, dtype=torch.int32),
        finish_reason=sequence.finish_reason,
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        top_k=request.sampling.top_k,
        policy_version=policy_version,
        hidden=torch.cat(records.hidden) if records.hidden else None,
        dense=None,
    )
