"""The student's policy term: the clipped surrogate on the sparse policy's own ratio.

    r_t  = pi_sparse,phi(x_t) / pi_sparse,rollout(x_t)
    loss = - min(r_t A, clip(r_t, 1 - low, 1 + high) A)

The rollout was drawn by the sparse policy itself, so no mismatch ratio enters. Shapes: T drawn tokens.
"""

from __future__ import annotations

import torch

_LOG_RATIO_LIMIT = 20.0
"""exp of a larger log-ratio would overflow in float32 soon after; the gradient there is 0."""


def sparse_ppo(
    new_logp_T: torch.Tensor,
    rollout_logp_T: torch.Tensor,
    advantage_T: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss per token ``[T]``, and bool ``[T]``: tokens whose ratio the clip holds back.

    Args:
        new_logp_T: of the sparse student now, with gradient.
        rollout_logp_T: of the sparse student at rollout.
        advantage_T: each token's advantage, from its sequence.
    """
    log_ratio_T = (new_logp_T - rollout_logp_T.detach()).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    ratio_T = log_ratio_T.exp()
    plain_T = ratio_T * advantage_T
    clipped_T = ratio_T.clamp(1 - clip_low, 1 + clip_high) * advantage_T
    return -torch.minimum(plain_T, clipped_T), (clipped_T < plain_T).detach()
