"""The sampler over device tensors draws what ``sampling.sample`` draws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_core.engine import Request, SamplingParams
from sparrow_core.engine.device_sampling import SamplingMode, device_sample, key_state, position_seeds
from sparrow_core.engine.sampling import SampledBatch, _hash64, sample
from sparrow_core.trace import SampleKey

VOCAB = 61

keys = st.builds(
    SampleKey,
    seed=st.integers(0, 2**63 - 1),
    step=st.integers(0, 2**31),
    prompt=st.integers(0, 2**31),
    sample=st.integers(0, 2**16),
)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.4]),
    greedy=st.booleans(),
    top_p=st.sampled_from([0.2, 0.8, 1.0]),
    top_k=st.sampled_from([0, 1, 5, VOCAB + 3]),
)


def on_device(
    logits_BV: torch.Tensor, requests: list[Request], positions: list[int], forced: list[int | None]
) -> tuple[SampledBatch, torch.Tensor]:
    rows = [r.sampling for r in requests]
    return device_sample(
        logits_BV,
        SamplingMode.of(requests),
        temperatures_B=torch.tensor([p.temperature for p in rows]),
        greedy_B=torch.tensor([p.greedy for p in rows]),
        top_p_B=torch.tensor([p.top_p for p in rows]),
        top_k_B=torch.tensor([p.top_k for p in rows]),
        states_B=torch.tensor([key_state(r) for r in requests]),
        positions_B=torch.tensor(positions),
        forced_B=torch.tensor([-1 if f is None else f for f in forced]),
        topk_logprobs=20,
    )


@given(key=keys, position=st.integers(0, 2**31))
def test_seeds_are_the_bits_of_the_host_hash(key: SampleKey, position: int) -> None:
    request = Request(key, (1,), SamplingParams())
    seed = int(position_seeds(torch.tensor([key_state(request)]), torch.tensor([position]))[0])
    assert seed % 2**64 == _hash64(key.seed, key.step, key.prompt, key.sample, position)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(keys, params, st.integers(0, 40000), st.one_of(st.none(), st.integers(0, VOCAB - 1))),
        min_size=1,
        max_size=6,
    ),
    logits_seed=st.integers(0, 1000),
)
def test_draws_and_records_equal_the_host_sampler(
    rows: list[tuple[SampleKey, SamplingParams, int, int | None]], logits_seed: int
) -> None:
    generator = torch.Generator().manual_seed(logits_seed)
    logits_BV = 3 * torch.randn(len(rows), VOCAB, generator=generator)
    requests = [Request(key, (1,), chosen) for key, chosen, _, _ in rows]
    positions, forced = [r[2] for r in rows], [r[3] for r in rows]
    expected = sample(
        logits_BV, [r.sampling for r in requests], [r.key for r in requests], positions, topk_logprobs=20, forced=forced
    )
    got, finite_B = on_device(logits_BV, requests, positions, forced)
    assert got.ids_B.tolist() == expected.ids_B.tolist()
    assert torch.equal(got.topk_ids_BK, expected.topk_ids_BK)
    assert torch.equal(got.logprobs_B, expected.logprobs_B)
    assert torch.equal(got.topk_logprobs_BK, expected.topk_logprobs_BK)
    assert finite_B.all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_of_logits_that_is_not_finite_is_flagged_alone(bad: float) -> None:
    logits_BV = torch.zeros(3, VOCAB)
    logits_BV[1, 7] = bad
    requests = [Request(SampleKey(seed=0, step=0, prompt=i, sample=0), (1,), SamplingParams()) for i in range(3)]
    _, finite_B = on_device(logits_BV, requests, [4, 5, 6], [None] * 3)
    assert finite_B.tolist() == [True, False, True]
