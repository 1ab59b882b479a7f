"""The KL penalty: its estimators, their gradients and their limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.objectives.helpers import batch_of, part, policy_tokens

Estimate = Callable[[float], tuple[float, float]]
"""From ``new - reference``: the estimate and its derivative in ``new``."""


def k3(gap: float) -> tuple[float, float]:
    return math.exp(-gap) - 1 + gap, 1 - math.exp(-gap)


def low_variance(gap: float) -> tuple[float, float]:
    value, slope = k3(gap)
    return (value, slope) if value <= 10 else (10.0, 0.0)


ESTIMATORS: dict[str, Estimate] = {
    "k1": lambda gap: (gap, 1.0),
    "k2": lambda gap: (gap**2 / 2, gap),
    "k3": k3,
    "low_variance": low_variance,
}
EVERY = pytest.mark.parametrize("name", ESTIMATORS)


def penalty(name: str, gaps: list[float], coefficient: float = 1.0) -> tuple[Any, torch.Tensor]:
    batch = batch_of([len(gaps)])
    new_T = batch.old_logp_T.clone().requires_grad_()
    reference_T = (new_T.detach().double() - torch.tensor(gaps, dtype=torch.float64)).float()
    config = {"type": "kl", "estimator": name, "coefficient": coefficient}
    out = part(config).token_loss(policy_tokens(batch, new_T, reference_logp_T=reference_T))
    (gradient_T,) = torch.autograd.grad(out.loss_T.sum(), new_T)
    return out, gradient_T


@EVERY
def test_values_and_gradients(name: str) -> None:
    gaps = torch.randn(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 1.5
    out, gradient_T = penalty(name, gaps.tolist(), coefficient=0.3)
    wanted = [ESTIMATORS[name](gap) for gap in gaps.tolist()]
    assert out.loss_T.tolist() == pytest.approx([0.3 * value for value, _ in wanted], rel=1e-5, abs=1e-6)
    assert gradient_T.tolist() == pytest.approx([0.3 * slope for _, slope in wanted], rel=1e-5, abs=1e-6)
    assert out.stats[f"reference_kl_{name}"].tolist() == pytest.approx(
        [value for value, _ in wanted], rel=1e-5, abs=1e-6
    )


@EVERY
@given(gap=st.floats(-100, 100, width=32))
def test_finite_of_one_sign_and_never_away_from_the_reference(name: str, gap: float) -> None:
    out, gradient_T = penalty(name, [gap])
    value, slope = float(out.loss_T[0].detach()), float(gradient_T[0])
    assert math.isfinite(value)
    assert math.isfinite(slope)
    if name != "k1":
        assert value >= 0
        assert slope * gap >= -1e-4
    if name == "low_variance":
        assert value <= 10


@EVERY
def test_zero_on_the_reference(name: str) -> None:
    out, _ = penalty(name, [0.0, 0.0])
    assert out.loss_T.tolist() == [0.0, 0.0]


def test_their_means_agree_on_tokens_of_the_policy() -> None:
    """k1 and k3 estimate the same KL(new || reference) without bias: an expectation over the whole vocabulary."""
    generator = torch.Generator().manual_seed(4)
    new_V, reference_V = (torch.randn(50, generator=generator, dtype=torch.float64).log_softmax(0) for _ in range(2))
    gaps = (new_V - reference_V).tolist()
    exact = float((new_V.exp() * (new_V - reference_V)).sum())
    for name in ("k1", "k3"):
        out, _ = penalty(name, gaps)
        assert float((new_V.exp() * out.loss_T.detach().double()).sum()) == pytest.approx(exact, rel=1e-5)
