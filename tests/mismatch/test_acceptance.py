"""Acceptance: its invariants, its bounds, its extremes and its errors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_core.mismatch import (
    MismatchError,
    acceptance_bounds,
    acceptance_exact,
    acceptance_topk_lower,
    log_softmax_at,
)
from sparrow_core.testing.mismatch import logits_pairs

TEMPERATURES = [0.01, 0.6, 1.0, 10.0]
ROUNDING = 2e-6


def by_definition(p_TV: torch.Tensor, q_TV: torch.Tensor) -> torch.Tensor:
    return torch.minimum(p_TV.double().exp(), q_TV.double().exp()).sum(-1)


def bounds_at(p_TV: torch.Tensor, q_TV: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    kept = q_TV.topk(k, dim=-1)
    return acceptance_bounds(p_TV, kept.indices, kept.values)


def one_hot(ids: list[int], vocab: int) -> torch.Tensor:
    logprobs_TV = torch.full((len(ids), vocab), -torch.inf)
    logprobs_TV[torch.arange(len(ids)), torch.tensor(ids)] = 0.0
    return logprobs_TV


@given(logits_pairs(), st.sampled_from(TEMPERATURES))
def test_exact_is_the_definition_symmetric_and_in_range(pair, temperature):
    p, q = (log_softmax_at(x, temperature) for x in pair)
    a_T = acceptance_exact(p, q)
    assert a_T.dtype == torch.float32
    assert ((a_T >= 0) & (a_T <= 1)).all()
    assert torch.equal(a_T, acceptance_exact(q, p))
    torch.testing.assert_close(a_T.double(), by_definition(p, q), atol=ROUNDING, rtol=0)
    tv_T = (p.double().exp() - q.double().exp()).abs().sum(-1) / 2
    torch.testing.assert_close(a_T.double(), 1 - tv_T, atol=ROUNDING, rtol=0)


@given(logits_pairs())
def test_exact_is_one_for_equal_and_below_one_for_different(pair):
    p, q = (log_softmax_at(x, 1.0) for x in pair)
    assert (acceptance_exact(p, p.clone()) == 1).all()
    differs_T = (p.exp() - q.exp()).abs().amax(-1) > 1e-6
    assert (acceptance_exact(p, q)[differs_T] < 1).all()


@given(logits_pairs())
def test_bounds_enclose_exact_and_tighten_with_k(pair):
    p, q = (log_softmax_at(x, 1.0) for x in pair)
    exact_T = acceptance_exact(p, q)
    last_lower_T, last_upper_T = torch.zeros_like(exact_T), torch.ones_like(exact_T)
    for k in range(p.shape[1] + 1):
        lower_T, upper_T = bounds_at(p, q, k)
        assert ((lower_T >= 0) & (lower_T <= upper_T) & (upper_T <= 1)).all()
        assert (lower_T <= exact_T + ROUNDING).all()
        assert (exact_T <= upper_T + ROUNDING).all()
        assert (lower_T >= last_lower_T - ROUNDING).all()
        assert (upper_T <= last_upper_T + ROUNDING).all()
        last_lower_T, last_upper_T = lower_T, upper_T
    torch.testing.assert_close(last_lower_T, last_upper_T, atol=2 * ROUNDING, rtol=0)


@given(logits_pairs(), st.integers(1, 12), st.integers(1, 12))
def test_published_bound_is_the_sum_over_shared_ids_and_never_above_lower(pair, j, k):
    p, q = (log_softmax_at(x, 1.0) for x in pair)
    dense, sparse = p.topk(min(j, p.shape[1])), q.topk(min(k, p.shape[1]))
    published_T = acceptance_topk_lower(dense.indices, dense.values, sparse.indices, sparse.values)
    lower_T, _ = acceptance_bounds(p, sparse.indices, sparse.values)
    assert (published_T <= lower_T + ROUNDING).all()
    for token in range(len(p)):
        shared = set(dense.indices[token].tolist()) & set(sparse.indices[token].tolist())
        expected = sum(min(math.exp(p[token, v]), math.exp(q[token, v])) for v in shared)
        assert float(published_T[token]) == pytest.approx(expected, abs=ROUNDING)


@given(logits_pairs(masked=False), st.floats(-50, 50), st.sampled_from(TEMPERATURES[1:]))
def test_shared_logit_shift_changes_nothing(pair, shift, temperature):
    p, q = (log_softmax_at(x.double(), temperature) for x in pair)
    shifted_p, shifted_q = (log_softmax_at(x.double() + shift, temperature) for x in pair)
    torch.testing.assert_close(acceptance_exact(p, q), acceptance_exact(shifted_p, shifted_q), atol=1e-9, rtol=0)


@given(logits_pairs(), st.randoms(use_true_random=False))
def test_vocabulary_permutation_changes_nothing(pair, random):
    p, q = (log_softmax_at(x, 1.0) for x in pair)
    order = list(range(p.shape[1]))
    random.shuffle(order)
    torch.testing.assert_close(acceptance_exact(p, q), acceptance_exact(p[:, order], q[:, order]), atol=1e-6, rtol=0)
    kept = q.topk(min(3, p.shape[1]))
    moved = torch.argsort(torch.tensor(order))[kept.indices]
    for before, after in zip(
        acceptance_bounds(p, kept.indices, kept.values), acceptance_bounds(p[:, order], moved, kept.values), strict=True
    ):
        torch.testing.assert_close(before, after, atol=1e-6, rtol=0)


@given(logits_pairs())
def test_a_token_does_not_depend_on_the_batch_around_it(pair):
    p, q = (log_softmax_at(x, 1.0) for x in pair)
    doubled_T = acceptance_exact(torch.cat([p, p]), torch.cat([q, q]))
    assert torch.equal(doubled_T, acceptance_exact(p, q).repeat(2))


def test_many_tokens_are_expanded_in_chunks_with_the_same_result(monkeypatch):
    p, q = (torch.log_softmax(torch.randn(50, 17, generator=torch.Generator().manual_seed(s)), -1) for s in (0, 1))
    whole_T = acceptance_exact(p, q)
    monkeypatch.setattr("sparrow_core.mismatch.acceptance._CHUNK_ELEMENTS", 40)
    assert torch.equal(acceptance_exact(p, q), whole_T)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_log_softmax_at_scales_logits_and_sums_to_one(temperature):
    logits_TV = 5 * torch.randn(6, 1000, generator=torch.Generator().manual_seed(0))
    logprobs_TV = log_softmax_at(logits_TV, temperature)
    torch.testing.assert_close(logprobs_TV.exp().sum(-1), torch.ones(6), atol=1e-5, rtol=0)
    expected_TV = torch.softmax(logits_TV.double() / temperature, -1).float()
    torch.testing.assert_close(logprobs_TV.exp(), expected_TV, atol=1e-5, rtol=1e-4)
    if temperature != 1.0:  # scaled log-probs are no distribution
        wrong_TV = torch.log_softmax(logits_TV, -1) / temperature
        assert ((wrong_TV.exp().sum(-1) - 1).abs() > 0.01).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_log_softmax_at_gives_float32(dtype):
    assert log_softmax_at(torch.randn(2, 5).to(dtype), 0.7).dtype == torch.float32


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_log_softmax_at_refuses_a_temperature_that_is_not_positive(temperature):
    with pytest.raises(InputError, match="temperature"):
        log_softmax_at(torch.zeros(1, 2), temperature)


def test_log_softmax_at_names_the_token_whose_logits_are_broken():
    logits_TV = torch.zeros(4, 3)
    logits_TV[2] = -torch.inf
    with pytest.raises(MismatchError, match="token 2"):
        log_softmax_at(logits_TV, 1.0)


def test_one_hot_distributions():
    p, q = one_hot([0, 1, 2], 4), one_hot([0, 2, 2], 4)
    assert acceptance_exact(p, q).tolist() == [1.0, 0.0, 1.0]
    lower_T, upper_T = bounds_at(p, q, 1)
    assert lower_T.tolist() == [1.0, 0.0, 1.0]
    assert upper_T.tolist() == [1.0, 0.0, 1.0]


def test_one_hot_against_uniform_is_one_over_vocabulary():
    p, q = one_hot([3], 8), torch.full((1, 8), -math.log(8))
    assert float(acceptance_exact(p, q)) == pytest.approx(1 / 8, abs=1e-6)


def test_vocabulary_of_one_is_always_accepted():
    zeros = torch.zeros(3, 1)
    ids = torch.zeros(3, 1, dtype=torch.int64)
    assert acceptance_exact(zeros, zeros).tolist() == [1.0] * 3
    assert [x.tolist() for x in acceptance_bounds(zeros, ids, zeros)] == [[1.0] * 3] * 2


def test_no_tokens_give_no_values():
    empty, ids = torch.zeros(0, 5), torch.zeros(0, 2, dtype=torch.int64)
    assert acceptance_exact(empty, empty).shape == (0,)
    assert acceptance_bounds(empty, ids, torch.zeros(0, 2))[0].shape == (0,)


def test_small_differences_keep_their_digits():
    p = torch.log(torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    q = torch.log(torch.tensor([[0.5 + 1e-7, 0.5 - 1e-7]], dtype=torch.float64))
    assert float(1 - acceptance_exact(p, q)) == pytest.approx(1e-7, rel=1e-6)


@pytest.mark.parametrize("side", ["dense", "sparse"])
def test_nan_log_probs_raise_with_their_token(side):
    good, bad = torch.log_softmax(torch.randn(5, 4), -1), torch.log_softmax(torch.randn(5, 4), -1)
    bad[3, 1] = torch.nan
    pair = (bad, good) if side == "dense" else (good, bad)
    ids = torch.arange(4).repeat(5, 1)
    with pytest.raises(MismatchError, match=f"{side}_logprobs is nan at token 3"):
        acceptance_exact(*pair)
    with pytest.raises(MismatchError, match="nan at token 3"):
        acceptance_bounds(pair[0], ids, pair[1])
    with pytest.raises(MismatchError, match="nan at token 3"):
        acceptance_topk_lower(ids, pair[0], ids, pair[1])


def test_logits_in_place_of_log_probs_are_refused():
    with pytest.raises(MismatchError, match="at most 0"):
        acceptance_exact(torch.full((1, 2), 3.0), torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("ids", "logprobs", "message"),
    [
        ([[0, 0]], [[-1.0, -1.0]], "twice at token 0"),
        ([[0, 9]], [[-1.0, -1.0]], r"0\.\.3"),
        ([[0, -1]], [[-1.0, -1.0]], r"0\.\.3"),
        ([[0, 1]], [[-1.0]], "same tokens"),
        ([[0], [1]], [[-1.0], [-1.0]], "covers 2 tokens"),
    ],
    ids=["repeated", "past-vocabulary", "negative", "ragged", "other-count"],
)
def test_wrong_top_k_is_refused(ids, logprobs, message):
    with pytest.raises(InputError, match=message):
        acceptance_bounds(torch.full((1, 4), math.log(0.25)), torch.tensor(ids), torch.tensor(logprobs))


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(InputError, match="shape"):
        acceptance_exact(torch.zeros(3, 1), torch.full((3, 3), -1.1))
