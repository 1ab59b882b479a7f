"""Jensen-Shannon divergence: the mean KL of teacher and student to their mixture ``m = beta p + (1 - beta) q``.

    beta KL(p || m) + (1 - beta) KL(q || m)      (bounded: ln 2 at beta = 1/2)

Config: ``type: jensen_shannon``, ``beta``. The generalised form of "On-Policy Distillation of Language Models"
(arXiv 2306.13649).
"""

from __future__ import annotations

import math

import torch
from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import DistillLoss
from sparrow_trainers.distill.losses.expectation import expected_gap


class JensenShannon(DistillLoss):
    class Config(PluginConfig):
        type: str = "jensen_shannon"
        beta: float = Field(0.5, gt=0, lt=1, description="the teacher's share of the mixture")

    def token_loss(self, student_logp_TV: torch.Tensor, teacher_logp_TV: torch.Tensor) -> torch.Tensor:
        """In nats; finite whatever either rules out."""
        assert isinstance(self.config, JensenShannon.Config)
        beta = self.config.beta
        # Where both are -inf the mixture's gradient would be NaN; any finite value does, its weight is 0.
        nowhere_TV = (student_logp_TV == -torch.inf) & (teacher_logp_TV == -torch.inf)
        mixture_TV = torch.logaddexp(
            teacher_logp_TV.masked_fill(nowhere_TV, 0) + math.log(beta),
            student_logp_TV.masked_fill(nowhere_TV, 0) + math.log1p(-beta),
        )
        teacher_T = expected_gap(teacher_logp_TV, teacher_logp_TV, mixture_TV)
        return beta * teacher_T + (1 - beta) * expected_gap(student_logp_TV, student_logp_TV, mixture_TV)
