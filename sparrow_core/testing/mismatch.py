"""Hypothesis strategies of what the mismatch and trace modules take: logits, acceptances, streams and traces."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sparrow_core.mismatch import MismatchStream, TokenMismatch
from sparrow_core.trace import DenseScores, FinishReason, SampleKey, Trace, TraceMeta, TraceSet

FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "context")
HIDDEN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@st.composite
def logits_pairs(
    draw: st.DrawFn, max_tokens: int = 4, max_vocab: int = 12, masked: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two float32 ``[T, V]`` logits of the same tokens: unrelated, close or equal, near one-hot or flat.

    ``masked`` lets vocabulary entries be -inf; each row keeps a finite one.
    """
    shape = (draw(st.integers(1, max_tokens)), draw(st.integers(1, max_vocab)))
    scale = draw(st.sampled_from([0.1, 1.0, 10.0, 100.0]))
    elements = st.floats(-1, 1, width=32)
    first, second = (torch.from_numpy(draw(arrays(np.float32, shape, elements=elements))) * scale for _ in range(2))
    closeness = draw(st.sampled_from([0.0, 1e-4, 0.1, 1.0]))
    second = first + (second - first) * closeness
    if masked:
        for logits in (first, second):
            mask = torch.from_numpy(draw(arrays(np.bool_, shape, elements=st.booleans())))
            mask[torch.arange(shape[0]), logits.argmax(dim=-1)] = False
            logits[mask] = -torch.inf
    return first, second


def acceptances(min_size: int = 0, max_size: int = 60) -> st.SearchStrategy[torch.Tensor]:
    """float32 ``[T]`` in [0, 1], rich in the values that matter: 0, around 0.999, exactly 1, cell edges."""
    edges = st.integers(0, 4096).map(lambda cell: cell / 4096)
    special = st.sampled_from([0.0, 0.5, 0.9985, float(np.float32(0.999)), 0.9995, 1.0])
    value = st.one_of(st.floats(0, 1, width=32), edges, special)
    return st.lists(value, min_size=min_size, max_size=max_size).map(lambda v: torch.tensor(v, dtype=torch.float32))


@st.composite
def token_mismatches(
    draw: st.DrawFn, max_tokens: int = 40, max_length: int = 100, exact: bool | None = None
) -> TokenMismatch:
    """Tokens whose lower <= exact <= upper; ``exact`` None leaves it to chance whether they carry exact values."""
    lower_T = draw(acceptances(max_size=max_tokens))
    size = len(lower_T)
    exact_T = lower_T + (1 - lower_T) * _fractions(draw, size)
    upper_T = exact_T + (1 - exact_T) * _fractions(draw, size)
    lengths_T = _integers(draw, size, max_length)
    attended_T = torch.minimum(lengths_T, _integers(draw, size, max_length))
    return TokenMismatch(
        lengths_T=lengths_T,
        lower_T=lower_T,
        upper_T=upper_T,
        pages_T=_integers(draw, size, max_length),
        attended_T=attended_T,
        exact_T=exact_T if (draw(st.booleans()) if exact is None else exact) else None,
    )


@st.composite
def streams(
    draw: st.DrawFn, bin_tokens: int = 20, num_bins: int = 4, quantile: float = 0.05, exact: bool | None = None
) -> MismatchStream:
    """Streams of the given settings that have seen up to three batches."""
    stream = MismatchStream(bin_tokens=bin_tokens, num_bins=num_bins, quantile=quantile)
    for tokens in draw(st.lists(token_mismatches(max_length=bin_tokens * (num_bins + 1), exact=exact), max_size=3)):
        stream.observe(tokens)
    return stream


@st.composite
def sample_keys(draw: st.DrawFn) -> SampleKey:
    part = st.integers(0, 2**31)
    return SampleKey(seed=draw(st.integers(0, 2**63 - 1)), step=draw(part), prompt=draw(part), sample=draw(part))


@st.composite
def traces(
    draw: st.DrawFn,
    max_prompt: int = 12,
    max_tokens: int = 8,
    max_topk: int = 4,
    hidden_dtype: torch.dtype | None = None,
    scored: bool | None = None,
) -> Trace:
    """Finished samples; ``hidden_dtype`` set: half of them keep hidden states; ``scored`` None: left to chance."""
    prompt, size = draw(st.integers(1, max_prompt)), draw(st.integers(0, max_tokens))
    width = draw(st.integers(1, max_topk))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    logprobs_TV = torch.log_softmax(3 * torch.randn(size, max_topk + 4, generator=generator), dim=-1)
    kept = logprobs_TV.topk(width, dim=-1)
    hidden = None
    if hidden_dtype is not None and draw(st.booleans()):
        hidden = torch.randn(size, 3, generator=generator).to(hidden_dtype)
    return Trace(
        key=draw(sample_keys()),
        prompt_ids=torch.randint(0, 2**31 - 1, (prompt,), generator=generator, dtype=torch.int32),
        token_ids=logprobs_TV.argmin(dim=-1).int(),
        logprobs=logprobs_TV.min(dim=-1).values,
        topk_ids=kept.indices.int(),
        topk_logprobs=kept.values,
        pages=torch.randint(1, 5, (size,), generator=generator, dtype=torch.int32),
        finish_reason=draw(st.sampled_from(FINISH_REASONS)),
        temperature=draw(st.floats(0.01, 10)),
        top_p=draw(st.floats(0.01, 1)),
        top_k=draw(st.integers(0, 100)),
        policy_version=draw(st.integers(0, 2**31)),
        hidden=hidden,
        dense=_dense(draw, generator, size) if (draw(st.booleans()) if scored is None else scored) else None,
    )


@st.composite
def trace_sets(draw: st.DrawFn, max_traces: int = 5, scored: bool | None = None) -> TraceSet:
    """Sets of up to ``max_traces`` traces, the empty set included, whose traces need not keep the same arrays."""
    dtype = draw(st.sampled_from([None, *HIDDEN_DTYPES]))
    kept = draw(st.lists(traces(hidden_dtype=dtype, scored=scored), max_size=max_traces))
    meta = TraceMeta(
        model=draw(st.text(max_size=8)),
        backend="reference",
        selector="mean_landmark",
        policy="static",
        page_size=draw(st.sampled_from([1, 2, 16])),
        sink_pages=1,
        recent_pages=2,
        dense_layers=draw(st.sampled_from([(), (0, 1)])),
        config={"rollout": {"temperature": draw(st.floats(0.01, 10)), "stop": [1, None, "x"]}},
    )
    return TraceSet(kept, meta)


def _fractions(draw: st.DrawFn, size: int) -> torch.Tensor:
    drawn = draw(st.lists(st.floats(0, 1, width=32), min_size=size, max_size=size))
    return torch.tensor(drawn, dtype=torch.float32)


def _integers(draw: st.DrawFn, size: int, largest: int) -> torch.Tensor:
    return torch.tensor(draw(st.lists(st.integers(1, largest), min_size=size, max_size=size)), dtype=torch.int64)


def _dense(draw: st.DrawFn, generator: torch.Generator, size: int) -> DenseScores:
    bounds_3T = torch.rand(3, size, generator=generator).sort(dim=0).values
    return DenseScores(
        logprobs=-torch.rand(size, generator=generator),
        acceptance_lower=bounds_3T[0].clone(),
        acceptance_upper=bounds_3T[2].clone(),
        acceptance_exact=bounds_3T[1].clone() if draw(st.booleans()) else None,
    )
