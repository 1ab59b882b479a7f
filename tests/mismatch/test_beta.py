"""The Beta fit of the tail, against distributions whose parameters are known."""

import numpy as np
import pytest
import torch
from scipy import stats

from sparrow_core.mismatch import TAIL_LIMIT, AcceptanceSketch, MismatchError, fit_tail_beta

SHAPES = [(0.4, 0.3), (1.0, 1.0), (2.0, 5.0), (6.0, 1.5)]


def synthetic(alpha: float, beta: float, size: int = 20_000) -> torch.Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(TAIL_LIMIT * rng.beta(alpha, beta, size=size))


def sketched(values: torch.Tensor) -> AcceptanceSketch:
    sketch = AcceptanceSketch()
    sketch.add(values)
    return sketch


@pytest.mark.parametrize("form", [torch.clone, sketched], ids=["values", "sketch"])
@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
def test_fit_recovers_the_parameters(alpha, beta, form):
    fit = fit_tail_beta(form(synthetic(alpha, beta)))
    assert fit is not None
    assert fit.alpha == pytest.approx(alpha, rel=0.05)
    assert fit.beta == pytest.approx(beta, rel=0.05)
    assert fit.ks < 0.02
    expected_variance = TAIL_LIMIT**2 * alpha * beta / ((alpha + beta) ** 2 * (alpha + beta + 1))
    assert fit.variance == pytest.approx(expected_variance, rel=0.05)


@pytest.mark.parametrize("form", [torch.clone, sketched], ids=["values", "sketch"])
def test_tokens_above_the_limit_are_left_out(form):
    tail = synthetic(2.0, 3.0, 1000)
    alone = fit_tail_beta(form(tail))
    mixed = fit_tail_beta(form(torch.cat([tail, torch.ones(50_000), torch.full((50,), 0.9995)])))
    assert alone == mixed
    assert alone is not None
    assert alone.tokens == 1000
    assert alone.scale == TAIL_LIMIT


@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
def test_sketch_and_values_agree(alpha, beta):
    values = synthetic(alpha, beta)
    exact, approximate = fit_tail_beta(values), fit_tail_beta(sketched(values))
    assert exact is not None
    assert approximate is not None
    assert approximate.alpha == pytest.approx(exact.alpha, rel=2e-3)
    assert approximate.beta == pytest.approx(exact.beta, rel=2e-3)
    assert approximate.ks == pytest.approx(exact.ks, abs=5e-3)


def test_ks_distance_is_scipys():
    values = synthetic(0.5, 2.0, 500)
    fit = fit_tail_beta(values)
    assert fit is not None
    expected = stats.kstest(values.numpy(), stats.beta(fit.alpha, fit.beta, scale=TAIL_LIMIT).cdf).statistic
    assert fit.ks == pytest.approx(expected, abs=1e-12)


def test_ks_is_large_where_the_tail_is_no_beta():
    two_lumps = torch.cat([torch.full((500,), 0.45), torch.full((500,), 0.55)])
    fit = fit_tail_beta(two_lumps)
    assert fit is not None
    assert fit.ks > 0.2


def test_zeros_do_not_upset_the_fit():
    fit = fit_tail_beta(torch.cat([torch.zeros(20), synthetic(0.5, 0.5, 1000)]))
    assert fit is not None
    assert np.isfinite([fit.alpha, fit.beta, fit.ks]).all()


@pytest.mark.parametrize(
    "values",
    [torch.zeros(0), torch.rand(29) * 0.9, torch.ones(500), torch.full((500,), 0.7), torch.zeros(500)],
    ids=["none", "too-few", "all-above", "one-value", "all-zero"],
)
@pytest.mark.parametrize("form", [torch.clone, sketched], ids=["values", "sketch"])
def test_no_fit_without_a_tail(values, form):
    assert fit_tail_beta(form(values)) is None


def test_duplicating_the_batch_keeps_the_fit():
    values = synthetic(2.0, 3.0, 500)
    once, twice = fit_tail_beta(values), fit_tail_beta(values.repeat(2))
    assert once is not None
    assert twice is not None
    assert (twice.alpha, twice.beta, twice.variance) == pytest.approx((once.alpha, once.beta, once.variance))


def test_nan_raises():
    with pytest.raises(MismatchError, match="token 0"):
        fit_tail_beta(torch.tensor([torch.nan] * 50))
