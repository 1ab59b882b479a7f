"""The noise floor's summary."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given

from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchError, noise_floor, noise_floor_of
from sparrow_core.testing.mismatch import traces


def test_summary_of_known_values():
    floor = noise_floor_of(torch.tensor([1.0, 0.5, 0.75, 1.0]), torch.tensor([0.0, -0.5, 0.25, 0.0]), quantile=0.5)
    assert (floor.min, floor.tail, floor.mean, floor.tokens) == (0.5, 0.75, 0.8125, 4)
    assert (floor.max_logprob_diff, floor.mean_logprob_diff) == (0.5, 0.1875)
    json.dumps(dataclasses.asdict(floor))


@given(traces(scored=True))
def test_traces_give_exact_values_where_all_have_them(trace):
    if not len(trace.token_ids):
        with pytest.raises(InputError, match="at least one token"):
            noise_floor([trace])
        return
    floor = noise_floor([trace, trace])
    exact = trace.dense.acceptance_exact
    values = trace.dense.acceptance_lower if exact is None else exact
    assert floor.kind == ("lower" if exact is None else "exact")
    assert floor.min == float(values.min())
    assert floor.tokens == 2 * len(values)
    assert floor.max_logprob_diff == float((trace.dense.logprobs - trace.logprobs).abs().max())


def test_no_traces_and_nan_are_refused():
    with pytest.raises(InputError, match="at least one"):
        noise_floor([])
    with pytest.raises(MismatchError, match="token 1"):
        noise_floor_of(torch.ones(2), torch.tensor([0.0, torch.nan]))
    with pytest.raises(InputError, match="same tokens"):
        noise_floor_of(torch.ones(2, 1), torch.ones(2))


@given(traces(scored=False))
def test_unscored_traces_are_named(trace):
    with pytest.raises(InputError, match=f"prompt={trace.key.prompt}"):
        noise_floor([trace])
