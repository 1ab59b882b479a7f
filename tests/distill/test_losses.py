"""Distillation losses: float64 definitions, gradients, extremes, and what a bucket may do to a divergence."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sparrow_core import registry
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import DistillLoss
from sparrow_trainers.distill.config import DistillConfig
from sparrow_trainers.distill.losses.sparse_ppo import sparse_ppo
from sparrow_trainers.distill.support import bucketed, exact_support, topk_support, with_rest

NAMES = ("forward_kl", "reverse_kl", "jensen_shannon")
EVERY = pytest.mark.parametrize("name", NAMES)


def loss(name: str, **config: float) -> DistillLoss:
    loss_class = registry.load("sparrow.distill_losses", name)
    made: DistillLoss = loss_class(loss_class.Config(**config))
    return made


def logits(tokens: int, vocab: int, seed: int, spread: float = 2.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(tokens, vocab, generator=generator, dtype=torch.float64) * spread).to(dtype)


def by_definition(name: str, student: list[float], teacher: list[float], beta: float = 0.5) -> float:
    def kl(a: list[float], b: list[float]) -> float:
        return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))

    mixture = [beta * p + (1 - beta) * q for p, q in zip(teacher, student, strict=True)]
    return {
        "forward_kl": lambda: kl(teacher, student),
        "reverse_kl": lambda: kl(student, teacher),
        "jensen_shannon": lambda: beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture),
    }[name]()


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
def test_values_are_those_of_the_definition(name: str, dtype: torch.dtype) -> None:
    student, teacher = exact_support(logits(5, 11, 0, dtype=dtype), logits(5, 11, 1, dtype=dtype), 0.7)
    got = loss(name).token_loss(student, teacher)
    rows = zip(student.double().exp().tolist(), teacher.double().exp().tolist(), strict=True)
    expected = torch.tensor([by_definition(name, q, p) for q, p in rows], dtype=torch.float64)
    torch.testing.assert_close(got.double(), expected, rtol=1e-12 if dtype == torch.float64 else 1e-5, atol=1e-7)


def test_jensen_shannon_takes_its_share_from_the_config() -> None:
    student, teacher = exact_support(logits(3, 7, 0), logits(3, 7, 1), 1.0)
    got = loss("jensen_shannon", beta=0.2).token_loss(student, teacher)
    rows = zip(student.exp().tolist(), teacher.exp().tolist(), strict=True)
    expected = [by_definition("jensen_shannon", q, p, beta=0.2) for q, p in rows]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


@EVERY
@pytest.mark.parametrize("support", ["exact", "topk"])
def test_gradients_are_those_of_finite_differences(name: str, support: str) -> None:
    teacher = logits(3, 6, 1)
    ids = torch.tensor([[0, 3], [5, 1], [2, 4]])

    def of(student: torch.Tensor) -> torch.Tensor:
        if support == "exact":
            return loss(name).token_loss(*exact_support(student, teacher, 0.8))
        return loss(name).token_loss(*topk_support(student, ids, 0.8, teacher_logits_TV=teacher))

    assert torch.autograd.gradcheck(of, logits(3, 6, 0).requires_grad_(True))


@EVERY
def test_a_perfect_student_has_no_loss_and_no_gradient(name: str) -> None:
    student = logits(4, 9, 0, dtype=torch.float32).requires_grad_(True)
    value = loss(name).token_loss(*exact_support(student, student, 1.0))
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert value.abs().max() < 1e-6
    assert gradient.abs().max() < 1e-6


@EVERY
@pytest.mark.parametrize("gap", [-100.0, 100.0])
def test_log_ratios_of_a_hundred_keep_loss_and_gradient_finite(name: str, gap: float) -> None:
    student = torch.tensor([[0.0, gap, 1.0]], requires_grad=True)
    teacher = torch.tensor([[gap, 0.0, 1.0]])
    ids = torch.tensor([[0]])
    for support in (
        exact_support(student, teacher, 1.0),
        topk_support(student, ids, 1.0, teacher_logits_TV=teacher),
    ):
        value = loss(name).token_loss(*support)
        (gradient,) = torch.autograd.grad(value.sum(), student)
        assert bool(value.isfinite().all())
        assert bool(gradient.isfinite().all())
        assert value.item() > 0.1


@EVERY
def test_outcomes_that_neither_side_allows_count_nothing(name: str) -> None:
    student = logits(2, 5, 0).requires_grad_(True)
    teacher = logits(2, 5, 1)
    blocked = torch.tensor([False, False, True, False, True])
    student_blocked, teacher_blocked = (x.masked_fill(blocked, -torch.inf) for x in (student, teacher))
    value = loss(name).token_loss(*exact_support(student_blocked, teacher_blocked, 1.0))
    (gradient,) = torch.autograd.grad(value.sum(), student)
    kept = loss(name).token_loss(*exact_support(student[:, ~blocked], teacher[:, ~blocked], 1.0))
    torch.testing.assert_close(value, kept)
    assert bool((gradient[:, blocked] == 0).all())
    assert bool(gradient.isfinite().all())


CASES = {
    "seed": st.integers(0, 10_000),
    "vocab": st.integers(2, 30),
    "spread": st.floats(0.1, 30.0),
    "temperature": st.floats(0.3, 3.0),
    "name": st.sampled_from(NAMES),
}


@settings(max_examples=60)
@given(**CASES, k=st.integers(1, 30))
def test_a_bucket_never_raises_a_divergence(
    seed: int, vocab: int, spread: float, temperature: float, name: str, k: int
) -> None:
    """Data processing inequality; with V - 1 ids or V nothing is lost."""
    k = min(k, vocab)
    student, teacher = (logits(4, vocab, seed + i, spread) for i in range(2))
    ids = student.argsort(-1, descending=True)[:, :k]
    exact = loss(name).token_loss(*exact_support(student, teacher, temperature))
    coarse = loss(name).token_loss(*topk_support(student, ids, temperature, teacher_logits_TV=teacher))
    slack = 1e-9 * (1 + exact.abs())
    assert bool((coarse <= exact + slack).all())
    assert bool((coarse >= -slack).all())
    if k >= vocab - 1:
        torch.testing.assert_close(coarse, exact, rtol=1e-7, atol=1e-9)


@settings(max_examples=40)
@given(**CASES, shift=st.floats(-50, 50))
def test_losses_ignore_shifts_of_logits_and_the_order_of_the_vocabulary(
    seed: int, vocab: int, spread: float, temperature: float, name: str, shift: float
) -> None:
    student, teacher = (logits(3, vocab, seed + i, spread) for i in range(2))
    order = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))
    plain = loss(name).token_loss(*exact_support(student, teacher, temperature))
    moved = loss(name).token_loss(*exact_support(student[:, order] + shift, teacher[:, order] - shift, temperature))
    torch.testing.assert_close(moved, plain, rtol=1e-6, atol=1e-9)


def test_buckets_sum_to_one_even_where_the_rest_is_tiny() -> None:
    sharp = torch.tensor([[40.0, 0.0, -1.0, -2.0]])
    logp = bucketed(sharp, torch.tensor([[0]]), 1.0)
    expected = torch.tensor([0.0, -1.0, -2.0]).logsumexp(0) - 40
    torch.testing.assert_close(logp[0, 1], expected)
    assert with_rest(torch.tensor([[0.0, -30.0]])).isfinite().all()


def test_stored_log_probs_serve_in_place_of_the_dense_logits() -> None:
    student, teacher = logits(4, 12, 0), logits(4, 12, 1)
    ids = student.argsort(-1)[:, :3]
    stored = torch.log_softmax(teacher / 0.9, -1).gather(-1, ids)
    by_logits = topk_support(student, ids, 0.9, teacher_logits_TV=teacher)
    by_stored = topk_support(student, ids, 0.9, teacher_topk_logp_TK=stored)
    for a, b in zip(by_stored, by_logits, strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(InputError, match="dense log-probs of these ids"):
        topk_support(student, ids, 0.9, teacher_topk_logp_TK=stored[:, :2])


@EVERY
def test_stored_log_probs_of_the_whole_vocabulary_leave_no_rest(name: str) -> None:
    student, teacher = logits(4, 12, 0), logits(4, 12, 1)
    ids = torch.arange(12).expand(4, 12)
    pair = topk_support(student, ids, 1.0, teacher_topk_logp_TK=torch.log_softmax(teacher, -1))
    whole = exact_support(student, teacher, 1.0)
    torch.testing.assert_close(loss(name).token_loss(*pair), loss(name).token_loss(*whole))


def test_the_policy_term_clips_on_the_side_that_pays() -> None:
    rollout = torch.zeros(6, dtype=torch.float64)
    new = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1, 0.9], dtype=torch.float64).log().requires_grad_(True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0, 2.0], dtype=torch.float64)
    value, held = sparse_ppo(new, rollout, advantage, clip_low=0.2, clip_high=0.28)
    torch.testing.assert_close(value, -torch.tensor([1.28, -1.5, 0.5, -0.8, 2.2, 1.8], dtype=torch.float64))
    assert held.tolist() == [True, False, False, True, False, False]
    (gradient,) = torch.autograd.grad(value.sum(), new)
    torch.testing.assert_close(gradient, -torch.tensor([0, -1.5, 0.5, 0, 2.2, 1.8], dtype=torch.float64))


@pytest.mark.parametrize("gap", [-100.0, 100.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_the_policy_term_survives_log_ratios_of_a_hundred(gap: float, advantage: float) -> None:
    new = torch.tensor([gap], requires_grad=True)
    value, _ = sparse_ppo(new, torch.zeros(1), torch.tensor([advantage]), clip_low=0.2, clip_high=0.28)
    (gradient,) = torch.autograd.grad(value.sum(), new)
    assert bool(value.isfinite().all())
    assert bool(gradient.isfinite().all())


def test_rollout_log_probs_get_no_gradient() -> None:
    rollout = torch.zeros(3, requires_grad=True)
    new = torch.full((3,), 0.1, requires_grad=True)
    sparse_ppo(new, rollout, torch.ones(3), clip_low=0.2, clip_high=0.28)[0].sum().backward()
    assert rollout.grad is None


def test_the_config_names_losses_and_weights() -> None:
    config = DistillConfig.model_validate(
        {"losses": [{"loss": "reverse_kl"}, {"loss": {"type": "jensen_shannon", "beta": 0.1}, "weight": 0.5}]}
    )
    assert [(entry.loss.type, entry.weight) for entry in config.losses] == [
        ("reverse_kl", 1.0),
        ("jensen_shannon", 0.5),
    ]
    assert config.losses[1].loss.beta == 0.1  # type: ignore[attr-defined]
    assert DistillConfig().losses[0].loss.type == "forward_kl"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"losses": [{"loss": "kl"}]}, "forward_kl"),
        ({"losses": [{"loss": "forward_kl", "weight": 0}]}, "weight"),
        ({"losses": [], "sparse_ppo": {"weight": 0}}, "nothing is trained"),
        ({"losses": [{"loss": {"type": "jensen_shannon", "beta": 1}}]}, "beta"),
    ],
)
def test_bad_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises((ValidationError, InputError), match=message):
        DistillConfig.model_validate(values)
