"""Denominators: the loss of token losses of one against what a reader would compute by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sparrow_core.train_contracts import ResponseBatch
from sparrow_trainers.objectives.objective import Objective
from tests.objectives.helpers import batch_of, objective, part, take_step, with_mismatch

LENGTHS = [1, 4, 2]


def pool() -> ResponseBatch:
    """Two rewards of advantage +1 and -1, one 0; the second sequence loses two of four tokens, the third all."""
    log_rho = [0.0, 0.0, 3.0, 0.0, 3.0, 3.0, 3.0]
    return with_mismatch(batch_of(LENGTHS, reward_S=torch.tensor([1.0, -1.0, 0.0]), max_tokens=8), log_rho)


def with_denominator(denominator: Any, *, counts_rejected: bool) -> Objective:
    base = objective(advantage="dr_grpo", corrections=["icepop"])
    return replace(base, denominator_rule=part(denominator), counts_rejected=counts_rejected)


@pytest.mark.parametrize(
    ("denominator", "counted", "left_out"),
    [
        # counted tokens: 7, or 3 of them kept
        ("token_mean", [1 / 7, 1 / 7], [1 / 3, 1 / 3]),
        # sequences: 3, or 2 with a kept token
        ("sequence_mean", [1 / 3, 1 / 4 / 3], [1 / 2, 1 / 2 / 2]),
        ("constant", [1 / 24, 1 / 24], [1 / 16, 1 / 16]),
        ({"type": "constant", "tokens": 5}, [1 / 15, 1 / 15], [1 / 10, 1 / 10]),
    ],
)
def test_the_share_of_each_kept_token(denominator: Any, counted: list[float], left_out: list[float]) -> None:
    batch = pool()
    for rejected, (first, second) in (("counted", counted), ("left_out", left_out)):
        trained = with_denominator(denominator, counts_rejected=rejected == "counted")
        step = take_step(trained, batch, batch.old_logp_T)
        # d loss / d log-prob = -A * share on an unchanged policy
        wanted = [-first, second, 0.0, second, 0.0, 0.0, 0.0]
        assert step.gradient_T.tolist() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", ["token_mean", "sequence_mean", "constant"])
def test_shares_of_sequences_without_tokens_are_finite(name: str) -> None:
    shares = part(name).shares(torch.tensor([0.0, 3.0], dtype=torch.float64), 8)
    assert bool(torch.isfinite(shares.factor_S).all())
    assert float(shares.size_S[0]) == 0
    assert shares.factor_S.dtype == shares.size_S.dtype == torch.float64


@pytest.mark.parametrize("name", ["token_mean", "sequence_mean", "constant"])
def test_a_minibatch_without_counted_tokens_has_a_loss_of_zero(name: str) -> None:
    batch = with_mismatch(batch_of([2, 1], reward_S=torch.tensor([1.0, 0.0])), [9.0, 9.0, 9.0])
    step = take_step(with_denominator(name, counts_rejected=False), batch, batch.old_logp_T)
    assert step.loss == 0
    assert step.gradient_T.tolist() == [0.0] * 3
