"""Forward KL divergence: the student covers what the teacher may say.

    KL(teacher || student) = sum_v p (log p - log q)

Config: ``type: forward_kl``.
"""

from __future__ import annotations

import torch

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import DistillLoss
from sparrow_trainers.distill.losses.expectation import expected_gap


class ForwardKL(DistillLoss):
    class Config(PluginConfig):
        type: str = "forward_kl"

    def token_loss(self, student_logp_TV: torch.Tensor, teacher_logp_TV: torch.Tensor) -> torch.Tensor:
        """In nats; infinite where the student rules out what the teacher does not."""
        return expected_gap(teacher_logp_TV, teacher_logp_TV, student_logp_TV)
