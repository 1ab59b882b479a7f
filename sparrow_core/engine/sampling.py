"""From logits to the next token and the record kept of it.

Log-probs are of the untruncated softmax at the sampling temperature; top-k and top-p only restrict what may be
drawn. Draws are a race of exponentials (Gumbel-max) whose noise is a hash of (seed, step, prompt, sample, position,
vocabulary id): no generator state, the same on every device, and independent of the batch a sequence runs in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow_core.errors import InputError
from sparrow_core.trace import SampleKey

_MASK32 = 0xFFFFFFFF
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence is sampled. Raises InputError when a field is out of range."""

    temperature: float = 1.0
    greedy: bool = False
    """Take the most likely token; log-probs stay those at ``temperature``."""
    top_p: float = 1.0
    top_k: int = 0
    """Draw among the k most likely tokens; 0 turns it off."""
    max_tokens: int = 256
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise InputError(
                f"rollout.temperature={self.temperature} must be above 0; "
                "for the most likely token set rollout.greedy=true"
            )
        if not 0 < self.top_p <= 1:
            raise InputError(f"rollout.top_p={self.top_p} must lie in (0, 1]; 1 turns it off")
        if self.top_k < 0:
            raise InputError(f"rollout.top_k={self.top_k} must be 0 (off) or more")
        if self.max_tokens < 1:
            raise InputError(f"rollout.max_tokens={self.max_tokens} must be at least 1")


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """One token per row: ids ``[B]``, log-probs ``[B]`` and the K most likely ids and log-probs ``[B, K]``."""

    ids_B: torch.Tensor
    logprobs_B: torch.Tensor
    topk_ids_BK: torch.Tensor
    topk_logprobs_BK: torch.Tensor


def sample(
    logits_BV: torch.Tensor,
    params: Sequence[SamplingParams],
    keys: Sequence[SampleKey],
    positions: Sequence[int],
    *,
    topk_logprobs: int,
    forced: Sequence[int | None] | None = None,
) -> SampledBatch:
    """Draw one token per row of float32 ``logits_BV``; a row with a ``forced`` id takes that one.

    ``positions`` is the position the drawn token will take in its sequence. Raises FloatingPointError naming
    the sequence and position when a row's logits are not finite.
    """
    temperature_B1 = logits_BV.new_tensor([[p.temperature] for p in params])
    scaled_BV = logits_BV / temperature_B1
    lse_B1 = torch.logsumexp(scaled_BV, dim=-1, keepdim=True)
    _require_finite(lse_B1, keys, positions)
    if forced is not None and None not in forced:
        drawn_B = torch.tensor(forced, device=logits_BV.device)
    else:
        drawn_B = _draw(scaled_BV, params, keys, positions)
        for row, token in enumerate(forced or ()):
            if token is not None:
                drawn_B[row] = token
    width = min(topk_logprobs, logits_BV.shape[-1])
    topk_BK, topk_ids_BK = torch.topk(scaled_BV, width, dim=-1)
    return SampledBatch(
        ids_B=drawn_B,
        logprobs_B=(scaled_BV.gather(-1, drawn_B[:, None]) - lse_B1).squeeze(-1),
        topk_ids_BK=topk_ids_BK,
        topk_logprobs_BK=topk_BK - lse_B1,
    )


def _require_finite(lse_B1: torch.Tensor, keys: Sequence[SampleKey], positions: Sequence[int]) -> None:
    bad = (~torch.isfinite(lse_B1.squeeze(-1))).nonzero()
    if bad.numel():
        row = int(bad[0])
        raise not_finite(keys[row], positions[row])


def not_finite(key: SampleKey, position: int) -> FloatingPointError:
    """The error of logits that are not finite, for the token at ``position``."""
    return FloatingPointError(
        f"logits of prompt {key.prompt}, sample {key.sample} are not finite at position {position}"
    )


def _draw(
    scaled_BV: torch.Tensor, params: Sequence[SamplingParams], keys: Sequence[SampleKey], positions: Sequence[int]
) -> torch.Tensor:
    if all(p.greedy for p in params):
        return scaled_BV.argmax(dim=-1)
    race_BV = _truncate(scaled_BV, params) + _gumbel(keys, positions, scaled_BV.shape[-1], scaled_BV.device)
    greedy_B1 = torch.tensor([[p.greedy] for p in params], device=scaled_BV.device)
    return torch.where(greedy_B1, scaled_BV, race_BV).argmax(dim=-1)


def _truncate(scaled_BV: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """-inf where a row's top-k or top-p forbids a token; rows without either are untouched."""
    rows = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1]
    if not rows:
        return scaled_BV
    vocab = scaled_BV.shape[-1]
    sorted_RV, order_RV = scaled_BV[rows].sort(dim=-1, descending=True, stable=True)
    top_k_R1 = torch.tensor([[params[i].top_k or vocab] for i in rows], device=scaled_BV.device)
    top_p_R1 = torch.tensor([[params[i].top_p] for i in rows], device=scaled_BV.device)
    rank_V = torch.arange(vocab, device=scaled_BV.device)
    sorted_RV = sorted_RV.masked_fill(rank_V >= top_k_R1, -torch.inf)
    probs_RV = sorted_RV.softmax(dim=-1)
    before_RV = probs_RV.cumsum(dim=-1) - probs_RV
    sorted_RV = sorted_RV.masked_fill((before_RV >= top_p_R1) & (rank_V > 0), -torch.inf)
    out_BV = scaled_BV.clone()
    out_BV[rows] = torch.empty_like(sorted_RV).scatter_(-1, order_RV, sorted_RV)
    return out_BV


def _gumbel(keys: Sequence[SampleKey], positions: Sequence[int], vocab: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise ``[B, V]`` float32, a pure function of key, position and vocabulary id."""
    seeds = [_hash64(k.seed, k.step, k.prompt, k.sample, position) for k, position in zip(keys, positions, strict=True)]
    low_B1 = torch.tensor([[s & _MASK32] for s in seeds], dtype=torch.int64, device=device)
    high_B1 = torch.tensor([[s >> 32] for s in seeds], dtype=torch.int64, device=device)
    ids_V = torch.arange(vocab, dtype=torch.int64, device=device)
    bits_BV = _mix32(_mix32((ids_V * 0x9E3779B1 & _MASK32) ^ low_B1) ^ high_B1)
    uniform_BV = (bits_BV.float() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform_BV))


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """A bijection of 32-bit integers held in int64 that changes about half the bits for any input bit."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B & _MASK32
    x = (x ^ (x >> 13)) * 0xC2B2AE35 & _MASK32
    return x ^ (x >> 16)


def _hash64(*values: int) -> int:
    """64-bit hash of integers (splitmix64 steps)."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK64)) + 0x9E3779B97F4A7C15 & _MASK64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK64
        state ^= state >> 31
    return state
