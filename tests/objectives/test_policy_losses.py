"""Policy losses: values and gradients against float64 formulas written token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparrow_core.train_contracts import PolicyTokens
from tests.objectives.helpers import batch_of, make_batch, new_logprobs, part, policy_tokens

Token = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""From the sequence's new and old log-probs (float64), the token's new log-prob and A: the token's loss."""


def clipped(ratio: torch.Tensor, advantage: float, low: float, high: float, dual: float | None = None) -> torch.Tensor:
    value = ratio.item()
    inside = min(max(value, low), high)
    factor = ratio if value * advantage <= inside * advantage else torch.full_like(ratio, inside)
    if dual is not None and advantage < 0 and factor.item() > dual:
        factor = torch.full_like(ratio, dual)
    return -factor * advantage


def clip(low: float, high: float, dual: float | None = None) -> Token:
    def loss(new: torch.Tensor, old: torch.Tensor, at: torch.Tensor, advantage: float) -> torch.Tensor:
        return clipped((new[at] - old[at]).exp(), advantage, low, high, dual)

    return loss


def gspo(low: float, high: float) -> Token:
    def loss(new: torch.Tensor, old: torch.Tensor, at: torch.Tensor, advantage: float) -> torch.Tensor:
        ratio = (new.exp().prod() / old.exp().prod()) ** (1 / len(new))
        return clipped(ratio, advantage, low, high)

    return loss


def cispo(low: float, high: float) -> Token:
    def loss(new: torch.Tensor, old: torch.Tensor, at: torch.Tensor, advantage: float) -> torch.Tensor:
        weight = min(max(float((new[at] - old[at]).detach().exp()), low), high)
        return -weight * advantage * new[at]

    return loss


CASES: list[tuple[dict[str, Any], Token]] = [
    ({"type": "clip"}, clip(0.8, 1.28)),
    ({"type": "clip", "clip_low": 0.1, "clip_high": 0.15}, clip(0.9, 1.15)),
    ({"type": "clip", "ratio_min": 0.5, "ratio_max": 1.5}, clip(0.5, 1.5)),
    ({"type": "clip", "clip_low": 0.3, "ratio_max": 1.1}, clip(0.7, 1.1)),
    ({"type": "clip", "dual": 1.3}, clip(0.8, 1.28, 1.3)),
    ({"type": "gspo"}, gspo(1 - 3e-4, 1 + 4e-4)),
    ({"type": "gspo", "clip_low": 0.2, "clip_high": 0.2}, gspo(0.8, 1.2)),
    ({"type": "cispo"}, cispo(0.0, 5.0)),
    ({"type": "cispo", "clip_low": 0.2, "ratio_max": 1.4}, cispo(0.8, 1.4)),
]
EVERY = pytest.mark.parametrize(("config", "formula"), CASES, ids=[str(config) for config, _ in CASES])


def expected(tokens: PolicyTokens, formula: Token) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses in float64, and the gradient of their sum weighted by 1, 2, 3, ... along the tokens."""
    new_T = tokens.new_logp_T.detach().double().requires_grad_()
    old_T, sequences = tokens.old_logp_T.double(), tokens.sequence_T
    losses = []
    for index, sequence in enumerate(sequences.tolist()):
        own = (sequences == sequence).nonzero().reshape(-1)
        at = torch.tensor(index - int(own[0]))
        losses.append(formula(new_T[own], old_T[own], at, float(tokens.advantage_T[index])))
    loss_T = torch.stack(losses)
    (gradient_T,) = torch.autograd.grad((loss_T * torch.arange(1, len(losses) + 1)).sum(), new_T)
    return loss_T.detach(), gradient_T


@EVERY
@pytest.mark.parametrize("seed", range(3))
def test_values_and_gradients(config: dict[str, Any], formula: Token, seed: int) -> None:
    batch = make_batch(seed)
    new_T = new_logprobs(batch, seed).requires_grad_()
    tokens = policy_tokens(batch, new_T)
    out = part(config).token_loss(tokens)
    (gradient_T,) = torch.autograd.grad((out.loss_T * torch.arange(1, len(new_T) + 1)).sum(), new_T)
    loss_T, wanted_T = expected(tokens, formula)
    assert out.loss_T.dtype == torch.float32
    torch.testing.assert_close(out.loss_T.double(), loss_T, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient_T.double(), wanted_T, rtol=1e-5, atol=1e-5)


@EVERY
def test_on_policy_the_gradient_is_the_policy_gradient(config: dict[str, Any], formula: Token) -> None:
    """Summed over a sequence, every loss starts as ``-A sum grad log-prob``."""
    batch = make_batch(3)
    new_T = batch.old_logp_T.clone().requires_grad_()
    tokens = policy_tokens(batch, new_T)
    (gradient_T,) = torch.autograd.grad(part(config).token_loss(tokens).loss_T.sum(), new_T)
    torch.testing.assert_close(gradient_T, -tokens.advantage_T, rtol=1e-5, atol=1e-6)


@EVERY
@pytest.mark.parametrize("gap", [-100.0, -21.0, 21.0, 100.0])
def test_extreme_ratios_are_finite_forward_and_backward(config: dict[str, Any], formula: Token, gap: float) -> None:
    batch = batch_of([2, 3, 1])
    new_T = (batch.old_logp_T + gap).requires_grad_()
    tokens = policy_tokens(batch, new_T)
    for sign in (1.0, -1.0):
        out = part(config).token_loss(replace(tokens, advantage_T=torch.full((6,), sign)))
        (gradient_T,) = torch.autograd.grad(out.loss_T.sum(), new_T)
        assert bool(torch.isfinite(out.loss_T).all())
        assert bool(torch.isfinite(gradient_T).all())
        assert all(bool(torch.isfinite(values_T).all()) for values_T in out.stats.values())


@pytest.mark.parametrize("name", ["clip", "gspo"])
def test_the_clipped_carry_no_gradient(name: str) -> None:
    batch = batch_of([2, 2])
    new_T = (batch.old_logp_T + torch.tensor([0.5, 0.5, -0.5, -0.5])).requires_grad_()
    tokens = policy_tokens(batch, new_T, advantage_T=torch.tensor([1.0, 1.0, -1.0, -1.0]))
    out = part(name).token_loss(tokens)
    (gradient_T,) = torch.autograd.grad(out.loss_T.sum(), new_T)
    assert gradient_T.tolist() == [0.0] * 4
    assert out.stats["clipped_high"].tolist() == [1, 1, 0, 0]
    assert out.stats["clipped_low"].tolist() == [0, 0, 1, 1]


def test_cispo_keeps_a_gradient_where_it_clips() -> None:
    batch = batch_of([2])
    new_T = (batch.old_logp_T + torch.tensor([3.0, 0.0])).requires_grad_()
    out = part({"type": "cispo", "ratio_max": 2.0}).token_loss(policy_tokens(batch, new_T, advantage_T=torch.ones(2)))
    (gradient_T,) = torch.autograd.grad(out.loss_T.sum(), new_T)
    assert gradient_T.tolist() == [-2.0, -1.0]
    assert out.stats["clipped_high"].tolist() == [1, 0]


def test_gspo_leaves_rejected_tokens_out_of_the_ratio() -> None:
    batch = batch_of([3, 2])
    gaps_T = torch.tensor([1e-4, 5.0, 3e-4, 2.0, 2.0])
    new_T = (batch.old_logp_T + gaps_T).requires_grad_()
    kept_T = torch.tensor([True, False, True, False, False])
    tokens = policy_tokens(batch, new_T, advantage_T=torch.ones(5), kept_T=kept_T)
    out = part("gspo").token_loss(tokens)
    assert out.stats["ratio"][:3].tolist() == pytest.approx([1.0002] * 3, rel=1e-6)
    assert out.stats["ratio"][3:].tolist() == [1.0, 1.0]
    (gradient_T,) = torch.autograd.grad(out.loss_T[kept_T].sum(), new_T)
    assert gradient_T.tolist() == pytest.approx([-1.0002, 0.0, -1.0002, 0.0, 0.0], rel=1e-5)


@pytest.mark.parametrize("name", ["clip", "gspo", "cispo"])
def test_no_tokens_give_no_losses(name: str) -> None:
    empty = torch.empty(0)
    tokens = PolicyTokens(empty, empty, empty, empty, empty.long(), empty.bool())
    assert part(name).token_loss(tokens).loss_T.shape == (0,)
