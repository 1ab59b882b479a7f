"""Estimates of KL(new || reference) per drawn token, as a term of the loss ("Approximating KL divergence", Schulman).

With ``d = new - reference``: k1 is ``d``, k2 is ``d^2 / 2``, k3 is ``exp(-d) - 1 + d``.

Shapes: T tokens.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Penalty, PolicyTokens, TokenLoss
from sparrow_trainers.objectives.ratios import LOG_RATIO_LIMIT

Estimator = Literal["k1", "k2", "k3", "low_variance"]

LOW_VARIANCE_LIMIT = 10.0
"""The largest value of the low_variance estimator."""


class KlConfig(PluginConfig):
    type: str = "kl"
    estimator: Estimator = Field(
        "k3", description="k1 may be negative, k2 and k3 never are; low_variance is k3 of at most 10"
    )
    coefficient: float = Field(0.001, gt=0, allow_inf_nan=False, description="factor on the estimate")


class Kl(Penalty):
    """``coefficient * estimate``. It is not weighted by the corrections, and rejected tokens have none."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = KlConfig
    needs_reference: ClassVar[bool] = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, KlConfig)
        self._estimator, self._coefficient = config.estimator, config.coefficient

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        assert tokens.reference_logp_T is not None, "the objective hands over the reference that needs_reference asks"
        gap_T = tokens.new_logp_T.double() - tokens.reference_logp_T.double()
        kl_T = kl_estimate(gap_T, self._estimator).float()
        return TokenLoss(self._coefficient * kl_T, {f"reference_kl_{self._estimator}": kl_T.detach()})


def kl_estimate(gap_T: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """The estimate for ``new - reference``, in nats. Constant where its exponential or the estimate is at its limit."""
    if estimator == "k1":
        return gap_T
    if estimator == "k2":
        return gap_T**2 / 2
    # Clamped as a whole: of the exponential alone, the linear term would push away from the reference.
    behind_T = (-gap_T).clamp(max=LOG_RATIO_LIMIT)
    k3_T = torch.expm1(behind_T) - behind_T
    return k3_T if estimator == "k3" else k3_T.clamp(max=LOW_VARIANCE_LIMIT)
