"""The sparse student looked at without training it: acceptance and KL to the teacher, with or without the adapter."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from sparrow_core.mismatch import MismatchStream
from sparrow_core.sparse_training import SparseTrainingSession, pack_traces
from sparrow_trainers.distill.config import DistillConfig, SparsePpoConfig
from sparrow_trainers.distill.step import Student, token_mismatch
from sparrow_trainers.distill.teacher import StudentSample, drawn_rows, packs_of
from sparrow_trainers.distill.token_losses import token_losses


@torch.no_grad()
def observe_student(
    student: Student,
    samples: Sequence[StudentSample],
    config: DistillConfig,
    stream: MismatchStream,
    *,
    with_adapter: bool,
) -> float:
    """Forward KL from the teacher in nats, summed over the samples' tokens; ``stream`` takes in their acceptances."""
    plain = config.model_copy(update={"sparse_ppo": SparsePpoConfig(weight=0)})
    model, total = student.model, 0.0
    for pack in packs_of([sample.trace for sample in samples], config.micro_batch_tokens):
        chosen = [samples[index] for index in pack]
        traces = [sample.trace for sample in chosen]
        tokens_1T, packed = pack_traces(traces, student.schedule, model.device)
        session = SparseTrainingSession(packed, student.selector, student.layout, device=model.device)
        with student.adapter.active(model) if with_adapter else nullcontext(), model.bind(session):
            hidden_TD = model.hidden(tokens_1T, documents=packed.documents)[0]
        for sample, rows in zip(chosen, drawn_rows(traces, packed.documents.offsets), strict=True):
            accepted = []
            for start in range(rows.start, rows.stop, config.logit_chunk):
                end = min(start + config.logit_chunk, rows.stop)
                part = token_losses(
                    model, hidden_TD[start:end], sample, slice(start - rows.start, end - rows.start), [], plain
                )
                assert part.acceptances is not None
                accepted.append(part.acceptances)
                total += part.sums["forward_kl"]
            stream.observe(token_mismatch(student, sample, accepted))
    return total
