"""The draws of ``sampling.py`` over device tensors alone: no host synchronisation, so a CUDA graph can hold them.

Shapes: B rows, V vocabulary, K recorded ids, Z stop ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow_core.engine.sampling import SampledBatch, _hash64, _mix32
from sparrow_core.engine.sequence import Request

_MASK32 = 0xFFFFFFFF


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit ``value``."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN, _MIX_1, _MIX_2 = (_signed(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class SamplingMode:
    """What any request of a rollout needs; fixes the operations of the step."""

    draws: bool
    truncates: bool

    @staticmethod
    def of(requests: Sequence[Request]) -> SamplingMode:
        params = [r.sampling for r in requests]
        return SamplingMode(
            draws=any(not p.greedy for p in params),
            truncates=any(not p.greedy and (p.top_k > 0 or p.top_p < 1) for p in params),
        )


def key_state(request: Request) -> int:
    """The hash of a sample's key as an int64; ``position_seeds`` adds the position."""
    key = request.key
    return _signed(_hash64(key.seed, key.step, key.prompt, key.sample))


def position_seeds(states_B: torch.Tensor, positions_B: torch.Tensor) -> torch.Tensor:
    """int64 bits of ``_hash64(seed, step, prompt, sample, position)``; integer products wrap at 64 bits."""
    x_B = (states_B ^ positions_B) + _GOLDEN
    x_B = (x_B ^ _shift_right(x_B, 30)) * _MIX_1
    x_B = (x_B ^ _shift_right(x_B, 27)) * _MIX_2
    return x_B ^ _shift_right(x_B, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """The unsigned shift of int64 bits."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def device_sample(
    logits_BV: torch.Tensor,
    mode: SamplingMode,
    *,
    temperatures_B: torch.Tensor,
    greedy_B: torch.Tensor,
    top_p_B: torch.Tensor,
    top_k_B: torch.Tensor,
    states_B: torch.Tensor,
    positions_B: torch.Tensor,
    forced_B: torch.Tensor,
    topk_logprobs: int,
) -> tuple[SampledBatch, torch.Tensor]:
    """One token per row, as ``sampling.sample`` draws it, and whether the row's logits are finite ``[B]``.

    Args:
        top_k_B: int64, 0 is off.
        states_B: int64 ``key_state`` of each row.
        positions_B: int64 position that the drawn token takes.
        forced_B: int64 id to take in place of the draw, -1 for none.
    """
    scaled_BV = logits_BV / temperatures_B[:, None]
    lse_B1 = torch.logsumexp(scaled_BV, dim=-1, keepdim=True)
    race_BV = scaled_BV
    if mode.draws:
        open_BV = _truncated(scaled_BV, top_p_B, top_k_B) if mode.truncates else scaled_BV
        seeds_B = position_seeds(states_B, positions_B)
        race_BV = torch.where(greedy_B[:, None], scaled_BV, open_BV + _gumbel(seeds_B, scaled_BV.shape[-1]))
    drawn_B = torch.where(forced_B >= 0, forced_B, race_BV.argmax(dim=-1))
    width = min(topk_logprobs, logits_BV.shape[-1])
    topk_BK, topk_ids_BK = torch.topk(scaled_BV, width, dim=-1)
    sampled = SampledBatch(
        ids_B=drawn_B,
        logprobs_B=(scaled_BV.gather(-1, drawn_B[:, None]) - lse_B1).squeeze(-1),
        topk_ids_BK=topk_ids_BK,
        topk_logprobs_BK=topk_BK - lse_B1,
    )
    return sampled, torch.isfinite(lse_B1.squeeze(-1))


def _truncated(scaled_BV: torch.Tensor, top_p_B: torch.Tensor, top_k_B: torch.Tensor) -> torch.Tensor:
    """-inf where a row's top-k or top-p forbids a token; rows without either are untouched."""
    vocab = scaled_BV.shape[-1]
    sorted_BV, order_BV = scaled_BV.sort(dim=-1, descending=True, stable=True)
    limits_B1 = torch.where(top_k_B > 0, top_k_B, vocab)[:, None]
    rank_V = torch.arange(vocab, device=scaled_BV.device)
    sorted_BV = sorted_BV.masked_fill(rank_V >= limits_B1, -torch.inf)
    probs_BV = sorted_BV.softmax(dim=-1)
    before_BV = probs_BV.cumsum(dim=-1) - probs_BV
    sorted_BV = sorted_BV.masked_fill((before_BV >= top_p_B[:, None]) & (rank_V > 0), -torch.inf)
    cut_BV = torch.empty_like(sorted_BV).scatter_(-1, order_BV, sorted_BV)
    return torch.where(((top_k_B > 0) | (top_p_B < 1))[:, None], cut_BV, scaled_BV)


def _gumbel(seeds_B: torch.Tensor, vocab: int) -> torch.Tensor:
    ids_V = torch.arange(vocab, dtype=torch.int64, device=seeds_B.device)
    low_B1, high_B1 = (seeds_B & _MASK32)[:, None], _shift_right(seeds_B, 32)[:, None]
    bits_BV = _mix32(_mix32((ids_V * 0x9E3779B1 & _MASK32) ^ low_B1) ^ high_B1)
    uniform_BV = (bits_BV.float() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform_BV))
