"""Drawing tokens: one temperature rule, exact truncation, noise that depends on nothing but its key."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_core.engine.sampling import SamplingParams, sample
from sparrow_core.errors import InputError
from sparrow_core.trace import SampleKey


def key(sample_index: int = 0, *, seed: int = 0, step: int = 0, prompt: int = 0) -> SampleKey:
    return SampleKey(seed=seed, step=step, prompt=prompt, sample=sample_index)


def draw(logits: torch.Tensor, params: SamplingParams, keys: list[SampleKey], position: int = 5, k: int = 4):
    rows = logits.expand(len(keys), -1).contiguous()
    return sample(rows, [params] * len(keys), keys, [position] * len(keys), topk_logprobs=k)


@pytest.mark.parametrize("temperature", [0.05, 0.6, 1.0, 1.3, 10.0])
def test_logprobs_are_of_the_untruncated_softmax_at_the_temperature(temperature: float) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)) * 5
    out = sample(logits, [SamplingParams(temperature=temperature, top_k=3, top_p=0.5)], [key()], [0], topk_logprobs=50)
    expected = torch.log_softmax(logits.double() / temperature, -1)
    torch.testing.assert_close(out.logprobs_B.double(), expected[0, out.ids_B], atol=1e-4, rtol=1e-5)
    assert out.topk_logprobs_BK.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_draw_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    num = 20_000
    out = draw(logits, SamplingParams(temperature=0.8), [key(i) for i in range(num)])
    counts = torch.bincount(out.ids_B, minlength=5).double()
    expected = torch.softmax(logits.double() / 0.8, -1) * num
    chi2 = ((counts - expected) ** 2 / expected).sum().item()
    assert chi2 < 23.5, "0.01 % point of chi-square with 4 degrees of freedom"


def test_draws_at_successive_positions_are_independent() -> None:
    logits, num = torch.zeros(2), 4000
    keys, params = [key()] * num, [SamplingParams()] * num
    ids = sample(logits.expand(num, -1).contiguous(), params, keys, list(range(num)), topk_logprobs=2).ids_B
    pairs = (ids[:-1] == ids[1:]).double().mean().item()
    assert abs(pairs - 0.5) < 4 * 0.5 / math.sqrt(num)


@given(top_k=st.integers(1, 12), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=50)
def test_top_k_draws_only_from_the_k_most_likely(top_k: int, seed: int) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(seed % 1000))
    out = draw(logits, SamplingParams(top_k=top_k), [key(i, seed=seed) for i in range(32)])
    assert set(out.ids_B.tolist()) <= set(logits.topk(top_k).indices.tolist())


@given(top_p=st.floats(0.01, 1.0), seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_top_p_draws_from_the_smallest_set_that_reaches_p(top_p: float, seed: int) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(seed))
    probs, order = torch.softmax(logits, -1).sort(descending=True)
    nucleus = order[(probs.cumsum(-1) - probs) < top_p]
    out = draw(logits, SamplingParams(top_p=top_p), [key(i, seed=seed) for i in range(32)])
    assert set(out.ids_B.tolist()) <= set(nucleus.tolist())
    assert len(nucleus) >= 1


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(6, 100, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=t, top_k=k) for t, k in zip([0.5, 1, 2] * 2, [0, 5, 0] * 2, strict=True)]
    keys, positions = [key(i) for i in range(6)], list(range(10, 16))
    together = sample(logits, params, keys, positions, topk_logprobs=3)
    for row in range(6):
        alone = sample(logits[row : row + 1], [params[row]], [keys[row]], [positions[row]], topk_logprobs=3)
        assert alone.ids_B.item() == together.ids_B[row].item()
        assert alone.logprobs_B.item() == together.logprobs_B[row].item()


@pytest.mark.parametrize("other", [{"seed": 1}, {"step": 1}, {"prompt": 1}, {"sample_index": 1}], ids=str)
def test_every_part_of_the_key_changes_the_noise(other: dict[str, int]) -> None:
    logits = torch.zeros(1000)
    same = [draw(logits, SamplingParams(), [key()], position=p).ids_B.item() for p in range(8)]
    changed = [draw(logits, SamplingParams(), [key(**other)], position=p).ids_B.item() for p in range(8)]
    assert same != changed
    assert same == [draw(logits, SamplingParams(), [key()], position=p).ids_B.item() for p in range(8)]


def test_greedy_takes_the_most_likely_token_and_reports_its_logprob_at_the_temperature() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0])
    out = draw(logits, SamplingParams(greedy=True, temperature=2.0), [key()])
    assert out.ids_B.item() == 1
    assert out.logprobs_B.item() == pytest.approx(torch.log_softmax(logits / 2, -1)[1].item(), abs=1e-6)


def test_forced_tokens_are_taken_and_scored() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    params = [SamplingParams(greedy=True)] * 2
    out = sample(logits, params, [key(0), key(1)], [0, 0], forced=[2, None], topk_logprobs=1)
    assert out.ids_B.tolist() == [2, 1]
    assert out.logprobs_B[0].item() == pytest.approx(torch.log_softmax(logits[0], -1)[2].item(), abs=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_name_the_sequence_and_position(bad: float) -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = bad
    with pytest.raises(FloatingPointError, match=r"prompt 0, sample 7 are not finite at position 12"):
        sample(logits, [SamplingParams()] * 2, [key(1), key(7)], [3, 12], topk_logprobs=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("max_tokens", 0),
    ],
)
def test_parameters_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(InputError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
