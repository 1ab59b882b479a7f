"""One trace: its shapes, lengths and attended tokens, and what it refuses."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchError
from sparrow_core.testing.mismatch import traces
from sparrow_core.trace import SampleKey, Trace, TraceMeta, TraceSet

META = TraceMeta("model", "reference", "mean_landmark", "static", 4, 1, 2, (0, 1))


def plain_trace(num_prompt: int = 5, num_tokens: int = 3, **changes: object) -> Trace:
    fields = {
        "key": SampleKey(seed=1, step=2, prompt=3, sample=4),
        "prompt_ids": torch.arange(num_prompt, dtype=torch.int32),
        "token_ids": torch.arange(num_tokens, dtype=torch.int32),
        "logprobs": torch.full((num_tokens,), -1.0),
        "topk_ids": torch.arange(2, dtype=torch.int32).repeat(num_tokens, 1),
        "topk_logprobs": torch.full((num_tokens, 2), -1.0),
        "pages": torch.ones(num_tokens, dtype=torch.int32),
        "finish_reason": "stop",
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "policy_version": 0,
    }
    return Trace(**(fields | changes))


def test_lengths_count_the_context_a_token_was_predicted_from():
    assert plain_trace(num_prompt=5, num_tokens=3).lengths.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("length", "pages", "attended"),
    [(7, 1, 3), (7, 2, 7), (8, 1, 4), (8, 2, 8), (9, 2, 5), (9, 3, 9), (9, 4, 9), (1, 1, 1)],
)
def test_attended_tokens_at_page_edges(length, pages, attended):
    trace = plain_trace(num_prompt=length, num_tokens=1, pages=torch.tensor([pages], dtype=torch.int32))
    assert trace.attended(page_size=4).tolist() == [attended]


@given(traces(), st.integers(1, 20))
def test_attended_tokens_lie_between_one_and_the_context(trace, page_size):
    attended_T = trace.attended(page_size)
    assert (attended_T >= 1).all()
    assert (attended_T <= trace.lengths).all()
    assert (attended_T <= trace.pages * page_size).all()


@given(traces(scored=True))
def test_mismatch_of_a_set_is_its_traces_tokens(trace):
    stream = TraceSet([trace, trace], META).mismatch(bin_tokens=4, num_bins=3, quantile=0.5)
    assert stream.total == 2 * len(trace.token_ids)
    assert (stream.bin_tokens, stream.num_bins, stream.quantile) == (4, 3, 0.5)
    reference = stream.empty_like()
    for _ in range(2):
        reference.observe(trace.mismatch(META.page_size))
    assert stream == reference
    if len(trace.token_ids):
        kept = int(trace.attended(META.page_size).sum()) / int(trace.lengths.sum())
        assert stream.overall().kept_fraction == kept


def test_mismatch_names_the_trace_without_scores():
    with pytest.raises(InputError, match=r"prompt=3, sample=4.*no dense scores"):
        TraceSet([plain_trace()], META).mismatch()


@given(traces())
def test_a_trace_equals_itself_and_not_a_changed_one(trace):
    assert trace.equals(dataclasses.replace(trace, logprobs=trace.logprobs.clone()))
    assert not trace.equals(dataclasses.replace(trace, policy_version=trace.policy_version + 1))
    if len(trace.token_ids):
        changed = trace.logprobs.clone()
        changed[0] -= 1
        assert not trace.equals(dataclasses.replace(trace, logprobs=changed))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"logprobs": torch.tensor([-1.0, torch.nan, -1.0])}, MismatchError, "logprobs of .*prompt=3.* token 1"),
        ({"topk_logprobs": torch.full((3, 2), torch.nan)}, MismatchError, "topk_logprobs .* token 0"),
        ({"logprobs": torch.zeros(2)}, InputError, r"trace.logprobs .* \(3,\)"),
        ({"logprobs": torch.zeros(3, 1)}, InputError, r"trace.logprobs .* \(3,\)"),
        ({"logprobs": torch.zeros(3, dtype=torch.float64)}, InputError, "float32"),
        ({"pages": torch.ones(3, dtype=torch.int64)}, InputError, "trace.pages .*int32"),
        ({"topk_ids": torch.zeros(3, 1, dtype=torch.int32)}, InputError, "topk_logprobs"),
        ({"hidden": torch.zeros(2, 4)}, InputError, "trace.hidden"),
        ({"finish_reason": "tired"}, InputError, "stop, length, context"),
    ],
)
def test_wrong_fields_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        plain_trace(**changes)
