"""torchtitan layers in the form our models use: rotary embedding with a shared table, plain QKV projection.

Both keep the stock state-dict keys, so torchtitan's adapters and parallel plans apply unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from sparrow_core.model import titan_compat  # noqa: F401  (before torchtitan)

from torchtitan.models.common.attention import QKVLinear  # isort: skip
from torchtitan.models.common.rope import CosSinRoPE  # isort: skip


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """The rotary table's rows of one forward's positions, gathered once for all layers.

    Passed through the decoder in place of the position ids.
    """

    rows_BL1H2: torch.Tensor
    """float32 ``[B or 1, L, 1, 2 H]``: cos, then sin with its first half negated."""


class SparrowRoPE(CosSinRoPE):  # type: ignore[misc]
    """Rotary embedding in the rotate-half convention of Hugging Face checkpoints, optionally with "llama3" scaling.

    The table is float32 ``[max_seq_len, 2 H]``: cos, then sin with its first half negated, so that a rotation is
    ``x * cos + roll(x, H / 2) * sin``.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):  # type: ignore[misc]
        pass

    def _precompute_cache(self) -> torch.Tensor:
        config: Any = self.config
        assert config.scaling in ("none", "llama"), f"rope scaling {config.scaling!r} is refused by read_model_spec"
        freq_H2 = 1.0 / (config.theta ** (torch.arange(0, config.dim, 2).float() / config.dim))
        if config.scaling == "llama":
            freq_H2 = llama3_frequencies(
                freq_H2,
                factor=config.scaling_factor,
                low_freq_factor=config.low_freq_factor,
                high_freq_factor=config.high_freq_factor,
                original_context=config.original_max_position_embeddings,
            )
        angle_LH2 = torch.arange(config.max_seq_len).float()[:, None] * freq_H2
        cos_LH2, sin_LH2 = angle_LH2.cos(), angle_LH2.sin()
        return torch.cat([cos_LH2, cos_LH2, -sin_LH2, sin_LH2], dim=-1)

    def rows(self, positions_BL: torch.Tensor) -> RotaryRows:
        """Rows of ``positions_BL``; each must be below ``max_seq_len``."""
        return RotaryRows(self.cache[positions_BL].unsqueeze(2))

    def _reshape_cache(self, query: torch.Tensor, positions: torch.Tensor | RotaryRows | None = None) -> torch.Tensor:
        if isinstance(positions, RotaryRows):
            return positions.rows_BL1H2
        rows: torch.Tensor = super()._reshape_cache(query, positions)
        return rows

    @staticmethod
    def apply_rotary_emb(
        query: torch.Tensor, key: torch.Tensor, rope_cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(rope_cache, DTensor):
            rope_cache = rope_cache.to_local()
        cos, signed_sin = rope_cache.chunk(2, dim=-1)
        return _rotate(query, cos, signed_sin), _rotate(key, cos, signed_sin)


def _rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    if isinstance(x, DTensor):
        # Heads are sharded over tensor-parallel ranks; each rotates its own.
        local = _rotate(x.to_local(), cos, signed_sin)
        return DTensor.from_local(local, x.device_mesh, x.placements, run_check=False)
    x_f = x.float()
    half = x.shape[-1] // 2
    return torch.addcmul(x_f * cos, x_f.roll(half, dims=-1), signed_sin).type_as(x)


def llama3_frequencies(
    freq: torch.Tensor, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_context: int
) -> torch.Tensor:
    """Llama 3.1's rule: a frequency that turns fewer than ``low_freq_factor`` times over the original context is
    divided by ``factor``, one that turns more than ``high_freq_factor`` times is kept, and between the two the
    weight of the kept one grows linearly with the number of turns."""
    turns = original_context * freq / (2 * math.pi)
    kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return freq * kept + (freq / factor) * (1 - kept)


class SparrowQKV(QKVLinear):  # type: ignore[misc]
    """The stock three projections, without the SPMD type bookkeeping around the split into heads."""

    @dataclass(kw_only=True, slots=True)
    class Config(QKVLinear.Config):  # type: ignore[misc]
        pass

    fused_weight: torch.Tensor | None = None
    """The three weights as one ``[rows of q, k and v, dim]`` for frozen models; not part of the state dict."""

    def fuse(self) -> None:
        """Compute the three projections as one product from now on. The weights must not change afterwards."""
        weights = [linear.weight.detach() for linear in (self.wq, self.wk, self.wv)]
        self.fused_weight = torch.cat(weights).t().contiguous().t()
        self._split = [len(weight) for weight in weights]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``[B, L, heads, H]`` each; heads come from the sizes, so sharded projections work too."""
        if self.fused_weight is None:
            parts = [linear(x) for linear in (self.wq, self.wk, self.wv)]
        else:
            parts = list(torch.split(F.linear(x, self.fused_weight), self._split, dim=-1))
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
        return q, k, v
