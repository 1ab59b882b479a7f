"""Dense recompute: what the dense policy says of the tokens a rollout drew, and how far the rollout drifted.

One forward of the trainer's own model over prompt and response gives, at the rollout's temperature, the dense
log-prob of every drawn token and the acceptance of its distribution (bounds from the stored top-K; exact when the
trace keeps hidden states, from which the rollout's full distribution is recomputed through the lm_head).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch

from sparrow_core.mismatch import acceptance_bounds, acceptance_exact, log_softmax_at
from sparrow_core.model import LanguageModel, PackedDocuments
from sparrow_core.trace import DenseScores, Trace

_LOGIT_CHUNK = 256
"""Tokens whose full-vocabulary distributions are held at once."""


def score_traces(
    model: LanguageModel,
    traces: Sequence[Trace],
    *,
    max_tokens: int = 8192,
    on_trace: Callable[[int], None] | None = None,
    on_topk: Callable[[Trace, torch.Tensor], None] | None = None,
) -> list[Trace]:
    """The traces with ``dense`` filled in, in the order given.

    Args:
        max_tokens: traces are packed into forwards of at most this many tokens (one longer trace goes alone).
        on_trace: called with the number of traces scored so far.
        on_topk: called with each trace, in order, and the dense log-probs ``[T, K]`` of its ``topk_ids``, on the host.
    """
    scored: list[Trace] = []
    with torch.no_grad():
        for pack in _packs(traces, max_tokens):
            texts = {_text(trace): trace for trace in pack}
            hidden = dict(zip(texts, _dense_hidden(model, list(texts.values())), strict=True))
            for trace in pack:
                scored.append(dataclasses.replace(trace, dense=_score(model, trace, hidden[_text(trace)], on_topk)))
                if on_trace is not None:
                    on_trace(len(scored))
    return scored


def _text(trace: Trace) -> tuple[bytes, bytes]:
    """What the dense forward depends on: traces of one text under several budgets share it."""
    return trace.prompt_ids.numpy().tobytes(), trace.token_ids.numpy().tobytes()


def _packs(traces: Sequence[Trace], max_tokens: int) -> Iterator[list[Trace]]:
    pack: list[Trace] = []
    texts: set[tuple[bytes, bytes]] = set()
    used = 0
    for trace in traces:
        size = 0 if _text(trace) in texts else len(trace.prompt_ids) + len(trace.token_ids) - 1
        if pack and used + size > max_tokens:
            yield pack
            pack, texts, used = [], set(), 0
            size = len(trace.prompt_ids) + len(trace.token_ids) - 1
        pack.append(trace)
        texts.add(_text(trace))
        used += size
    if pack:
        yield pack


def _dense_hidden(model: LanguageModel, pack: list[Trace]) -> list[torch.Tensor]:
    """Final hidden states ``[T, D]`` at the positions that predict each trace's T drawn tokens."""
    # The last drawn token predicts nothing that was drawn, so it is not fed.
    inputs = [torch.cat([t.prompt_ids, t.token_ids[:-1]]).long() for t in pack]
    sizes = [len(i) for i in inputs]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    tokens_1T = torch.cat(inputs)[None].to(model.device)
    positions_1T = torch.cat([torch.arange(n) for n in sizes])[None].to(model.device)
    documents = PackedDocuments(offsets.to(device=model.device, dtype=torch.int32)) if len(pack) > 1 else None
    hidden_TD = model.hidden(tokens_1T, positions_1T, documents)[0]
    ends = offsets[1:].tolist()
    return [hidden_TD[end - len(t.token_ids) : end] for end, t in zip(ends, pack, strict=True)]


def _score(
    model: LanguageModel,
    trace: Trace,
    hidden_TD: torch.Tensor,
    on_topk: Callable[[Trace, torch.Tensor], None] | None,
) -> DenseScores:
    logprobs, lower, upper, exact, topk = [], [], [], [], []
    for start in range(0, len(hidden_TD), _LOGIT_CHUNK):
        rows = slice(start, start + _LOGIT_CHUNK)
        dense_TV = log_softmax_at(model.logits(hidden_TD[rows]), trace.temperature)
        ids_T1 = trace.token_ids[rows].long().to(dense_TV.device)[:, None]
        logprobs.append(dense_TV.gather(-1, ids_T1).squeeze(-1).cpu())
        topk_ids = trace.topk_ids[rows].long().to(dense_TV.device)
        if on_topk is not None:
            topk.append(dense_TV.gather(-1, topk_ids).cpu())
        bounds = acceptance_bounds(dense_TV, topk_ids, trace.topk_logprobs[rows].to(dense_TV.device))
        lower.append(bounds[0].cpu())
        upper.append(bounds[1].cpu())
        if trace.hidden is not None:
            sparse_logits = model.logits(trace.hidden[rows].to(model.device, model.dtype))
            exact.append(acceptance_exact(dense_TV, log_softmax_at(sparse_logits, trace.temperature)).cpu())
    if on_topk is not None:
        on_topk(trace, torch.cat(topk))
    return DenseScores(
        logprobs=torch.cat(logprobs),
        acceptance_lower=torch.cat(lower),
        acceptance_upper=torch.cat(upper),
        acceptance_exact=torch.cat(exact) if exact else None,
    )
