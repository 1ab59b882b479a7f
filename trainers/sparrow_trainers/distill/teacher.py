"""What the dense policy says of a rollout's tokens, in the form that distillation needs.

Shapes: T drawn tokens, D width of the final hidden state, K ids kept per token.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from sparrow_core.errors import InputError
from sparrow_core.mismatch import log_softmax_at
from sparrow_core.model import LanguageModel
from sparrow_core.sparse_training import pack_traces
from sparrow_core.trace import Trace
from sparrow_trainers.distill.config import DistillConfig


@dataclass(frozen=True, slots=True, eq=False)
class StudentSample:
    """One trace of the sparse student with the dense policy's view of it.

    Raises InputError when neither teacher is given or one does not fit the trace.
    """

    trace: Trace
    teacher_hidden_TD: torch.Tensor | None = None
    """Final hidden states of the dense policy where it predicts the drawn tokens; valid for its present lm_head."""
    teacher_topk_logp_TK: torch.Tensor | None = None
    """Its log-probs of ``trace.topk_ids``, float32: stays valid while the dense weights move on."""
    advantage: float | None = None
    """Of the sequence, for the student's own policy term."""

    def __post_init__(self) -> None:
        if self.teacher_hidden_TD is None and self.teacher_topk_logp_TK is None:
            raise InputError(f"the sample of {self.trace.key} has no teacher; give hidden states or log-probs")
        for name in ("teacher_hidden_TD", "teacher_topk_logp_TK"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.trace.token_ids):
                raise InputError(
                    f"{name} of {self.trace.key} covers {len(value)} tokens but {len(self.trace.token_ids)} were drawn"
                )


def packs_of(traces: Sequence[Trace], max_tokens: int) -> Iterator[list[int]]:
    """Indices of traces packed in order into at most ``max_tokens`` tokens; a longer trace goes alone."""
    pack: list[int] = []
    used = 0
    for index, trace in enumerate(traces):
        size = len(trace.prompt_ids) + len(trace.token_ids) - 1
        if pack and used + size > max_tokens:
            yield pack
            pack, used = [], 0
        pack.append(index)
        used += size
    if pack:
        yield pack


def drawn_rows(traces: Sequence[Trace], offsets: Sequence[int]) -> list[slice]:
    """Where the tokens of packed traces lie that predict the drawn ones."""
    pairs = zip(traces, itertools.pairwise(offsets), strict=True)
    return [slice(end - len(trace.token_ids), end) for trace, (_, end) in pairs]


def ask_teacher(
    model: LanguageModel, traces: Sequence[Trace], config: DistillConfig, advantages: Sequence[float] | None = None
) -> list[StudentSample]:
    """A sample of every trace, by one dense forward without the adapter.

    ``config.support`` says what is kept: hidden states (exact) or log-probs of the stored ids (topk).
    """
    samples: list[StudentSample] = []
    with torch.no_grad():
        for pack in packs_of(traces, config.micro_batch_tokens):
            chosen = [traces[i] for i in pack]
            tokens_1T, tokens = pack_traces(chosen, device=model.device)
            hidden_TD = model.hidden(tokens_1T, documents=tokens.documents)[0]
            for index, trace, rows in zip(pack, chosen, drawn_rows(chosen, tokens.documents.offsets), strict=True):
                advantage = None if advantages is None else advantages[index]
                if config.support == "exact":
                    samples.append(StudentSample(trace, teacher_hidden_TD=hidden_TD[rows], advantage=advantage))
                else:
                    logp_TK = _topk_logp(model, trace, hidden_TD[rows], config.logit_chunk)
                    samples.append(StudentSample(trace, teacher_topk_logp_TK=logp_TK, advantage=advantage))
    return samples


def _topk_logp(model: LanguageModel, trace: Trace, hidden_TD: torch.Tensor, chunk: int) -> torch.Tensor:
    parts = []
    for start in range(0, len(hidden_TD), chunk):
        rows = slice(start, start + chunk)
        logp_TV = log_softmax_at(model.logits(hidden_TD[rows]), trace.temperature)
        parts.append(logp_TV.gather(-1, trace.topk_ids[rows].long().to(logp_TV.device)))
    return torch.cat(parts)
