"""Reverse KL divergence: the student keeps to what the teacher says.

    KL(student || teacher) = sum_v q (log q - log p)

Config: ``type: reverse_kl``.
"""

from __future__ import annotations

import torch

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import DistillLoss
from sparrow_trainers.distill.losses.expectation import expected_gap


class ReverseKL(DistillLoss):
    class Config(PluginConfig):
        type: str = "reverse_kl"

    def token_loss(self, student_logp_TV: torch.Tensor, teacher_logp_TV: torch.Tensor) -> torch.Tensor:
        """In nats; infinite where the teacher rules out what the student does not."""
        return expected_gap(student_logp_TV, student_logp_TV, teacher_logp_TV)
