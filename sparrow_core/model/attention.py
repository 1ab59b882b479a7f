"""The model's attention: a rollout's session when one is bound, else causal attention for training and recompute.

Shapes: B batch, L sequence length, N query or KV heads, H head dim, T = B * L packed tokens.
"""

from __future__ import annotations

import inspect
import itertools
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from sparrow_core.errors import InputError
from sparrow_core.model import titan_compat  # noqa: F401  (before torchtitan)

from torchtitan.protocols.module import Module  # isort: skip

_VARLEN_DTYPES = (torch.bfloat16, torch.float16)
_VARLEN_HAS_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters


class AttentionSession(Protocol):
    """What a rollout binds to the model: attention of one layer over its own KV cache."""

    def attend(
        self, layer: int, q_BLNH: torch.Tensor, k_BLNH: torch.Tensor, v_BLNH: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Store the new keys and values and return the attention output ``[B, L, N, H]``."""


@dataclass(frozen=True, slots=True)
class PackedDocuments:
    """Documents laid end to end in one row of tokens; each attends to itself alone, causally.

    Raises InputError when the offsets do not start at 0 or do not ascend.
    """

    cu_seqlens: torch.Tensor
    """int32 ``[documents + 1]``: where each document starts, then the number of tokens in all."""
    offsets: tuple[int, ...] = field(init=False)
    """The same on the host."""

    def __post_init__(self) -> None:
        offsets = tuple(int(offset) for offset in self.cu_seqlens.tolist())
        lengths = [end - start for start, end in itertools.pairwise(offsets)]
        if len(offsets) < 2 or offsets[0] != 0 or min(lengths) < 1:
            raise InputError(
                f"documents.cu_seqlens={list(offsets)} must start at 0 and ascend; "
                "give every document at least one token"
            )
        object.__setattr__(self, "offsets", offsets)

    @property
    def max_length(self) -> int:
        return max(end - start for start, end in itertools.pairwise(self.offsets))

    def positions(self) -> torch.Tensor:
        """``[1, T]`` int64: each token's position in its own document."""
        parts = [torch.arange(end - start) for start, end in itertools.pairwise(self.offsets)]
        return torch.cat(parts)[None].to(self.cu_seqlens.device)


class SparrowAttention(Module):  # type: ignore[misc]
    """The ``inner_attention`` of every layer; gets queries and keys after QK-norm and RoPE."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):  # type: ignore[misc]
        layer_id: int

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layer_id = config.layer_id
        self.session: AttentionSession | None = None

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: PackedDocuments | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attention output ``[B, L, N, H]``. ``attention_masks`` is ignored while a session is bound."""
        if self.session is not None:
            scale = q_BLNH.shape[-1] ** -0.5 if scale is None else scale
            return self.session.attend(self.layer_id, q_BLNH, k_BLNH, v_BLNH, scale)
        if attention_masks is None:
            return _causal(q_BLNH, k_BLNH, v_BLNH, scale, enable_gqa)
        assert isinstance(attention_masks, PackedDocuments), f"not a PackedDocuments: {attention_masks!r}"
        return document_attention(q_BLNH, k_BLNH, v_BLNH, attention_masks, scale, enable_gqa)


def document_attention(
    q_BLNH: torch.Tensor,
    k_BLNH: torch.Tensor,
    v_BLNH: torch.Tensor,
    documents: PackedDocuments,
    scale: float | None = None,
    enable_gqa: bool = True,
) -> torch.Tensor:
    """Dense causal attention ``[B, L, N, H]`` of each packed document to itself, as training does it.

    Raises InputError when the documents do not hold B * L tokens.
    """
    num_tokens = q_BLNH.shape[0] * q_BLNH.shape[1]
    if documents.offsets[-1] != num_tokens:
        raise InputError(
            f"documents.cu_seqlens ends at {documents.offsets[-1]} but there are {num_tokens} tokens; "
            "its last entry is the number of tokens"
        )
    if _varlen_serves(q_BLNH):
        return _varlen(q_BLNH, k_BLNH, v_BLNH, documents, scale)
    return _causal_by_document(q_BLNH, k_BLNH, v_BLNH, documents, scale, enable_gqa)


def _varlen_serves(q_BLNH: torch.Tensor) -> bool:
    head_dim = q_BLNH.shape[-1]
    return q_BLNH.is_cuda and q_BLNH.dtype in _VARLEN_DTYPES and head_dim % 8 == 0 and head_dim <= 256


def _causal(
    q_BLNH: torch.Tensor, k_BLNH: torch.Tensor, v_BLNH: torch.Tensor, scale: float | None, enable_gqa: bool
) -> torch.Tensor:
    out_BNLH = F.scaled_dot_product_attention(
        q_BLNH.transpose(1, 2),
        k_BLNH.transpose(1, 2),
        v_BLNH.transpose(1, 2),
        is_causal=True,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    return out_BNLH.transpose(1, 2)


def _causal_by_document(
    q_BLNH: torch.Tensor,
    k_BLNH: torch.Tensor,
    v_BLNH: torch.Tensor,
    documents: PackedDocuments,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    q_1TNH, k_1TNH, v_1TNH = (x.flatten(0, 1)[None] for x in (q_BLNH, k_BLNH, v_BLNH))
    # Splits, not slices: a slice's gradient is as large as the whole, once for each document.
    lengths = [end - start for start, end in itertools.pairwise(documents.offsets)]
    split = [torch.split(x, lengths, dim=1) for x in (q_1TNH, k_1TNH, v_1TNH)]
    parts = [_causal(q, k, v, scale, enable_gqa) for q, k, v in zip(*split, strict=True)]
    return torch.cat(parts, dim=1).view(q_BLNH.shape)


def _varlen(
    q_BLNH: torch.Tensor,
    k_BLNH: torch.Tensor,
    v_BLNH: torch.Tensor,
    documents: PackedDocuments,
    scale: float | None,
) -> torch.Tensor:
    q_TNH, k_TNH, v_TNH = (x.flatten(0, 1) for x in (q_BLNH, k_BLNH, v_BLNH))
    kwargs: dict[str, Any] = {}
    group_size = q_TNH.shape[1] // k_TNH.shape[1]
    if group_size > 1 and _VARLEN_HAS_GQA:
        kwargs["enable_gqa"] = True
    elif group_size > 1:
        k_TNH, v_TNH = (x.repeat_interleave(group_size, dim=1) for x in (k_TNH, v_TNH))
    cu_seqlens = documents.cu_seqlens.to(device=q_BLNH.device, dtype=torch.int32)
    longest = documents.max_length
    out_TNH = varlen_attn(
        q_TNH,
        k_TNH,
        v_TNH,
        cu_seqlens,
        cu_seqlens,
        longest,
        longest,
        scale=scale,
        window_size=(-1, 0),
        **kwargs,
    )
    assert isinstance(out_TNH, torch.Tensor)
    return out_TNH.view(q_BLNH.shape)
