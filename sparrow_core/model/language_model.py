"""A loaded model: hidden states, logits, and the seam at which a rollout takes over its attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sparrow_core.cache import AttentionShape
from sparrow_core.errors import CheckpointError, InputError
from sparrow_core.model.attention import AttentionSession, PackedDocuments
from sparrow_core.model.hf_config import ModelSpec
from sparrow_core.model.tokens import has_tokenizer


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A torchtitan decoder with what the rest of the project needs to know of it."""

    module: Any
    """The decoder: ``torchtitan.models.llama3.Llama3Model`` or ``qwen3.Qwen3Model``."""
    config: dict[str, Any]
    """The Hugging Face config, as in ``config.json``."""
    spec: ModelSpec
    name: str
    eos_ids: frozenset[int]
    """Tokens that end a sequence. A finish reason comes from this set, never from a comparison with pad."""
    dtype: torch.dtype
    device: torch.device
    directory: Path | None = None
    """The Hugging Face directory the model was loaded from (for GGUF: its conversion); None for random weights."""

    @property
    def shape(self) -> AttentionShape:
        return self.spec.shape

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    @property
    def context_length(self) -> int:
        """The most tokens a sequence may have: ``max_position_embeddings``."""
        return self.spec.context_length

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, loaded at first use. Raises CheckpointError when the model has none."""
        if self.directory is None or not has_tokenizer(self.directory):
            where = "random weights" if self.directory is None else str(self.directory)
            raise CheckpointError(
                f"{self.name} ({where}) has no tokenizer; add tokenizer.json and tokenizer_config.json, "
                "or give prompts as token ids"
            )
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(self.directory), local_files_only=True)

    def hidden(
        self,
        tokens_BL: torch.Tensor,
        positions_BL: torch.Tensor | None = None,
        documents: PackedDocuments | None = None,
    ) -> torch.Tensor:
        """Hidden states ``[B, L, dim]`` after the final norm, before the lm_head.

        Args:
            tokens_BL: int64 token ids.
            positions_BL: int64 position of each token in its sequence; by default 0 to L - 1, or each document's own.
            documents: the documents packed in the tokens, B * L of them in all.

        Raises InputError when the tokens are longer than ``context_length`` and no positions are given.
        """
        if positions_BL is None:
            positions_BL = self._default_positions(tokens_BL, documents)
        rope = next(iter(self.module.layers.values())).attention.rope
        kept = self.module._skip_lm_head
        self.module._skip_lm_head = True
        try:
            hidden_BLD: torch.Tensor = self.module(tokens_BL, rope.rows(positions_BL), documents)
        finally:
            self.module._skip_lm_head = kept
        return hidden_BLD

    def _default_positions(self, tokens_BL: torch.Tensor, documents: PackedDocuments | None) -> torch.Tensor:
        longest = tokens_BL.shape[1] if documents is None else documents.max_length
        if longest > self.context_length:
            raise InputError(f"{longest} tokens are more than {self.name}'s context of {self.context_length}")
        if documents is None:
            return torch.arange(tokens_BL.shape[1], device=tokens_BL.device)[None]
        return documents.positions().to(tokens_BL.device).view(tokens_BL.shape)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits ``[..., V]`` of hidden states ``[..., dim]``."""
        logits: torch.Tensor = self.module.lm_head(hidden)
        return logits.float()

    @contextmanager
    def bind(self, session: AttentionSession | None) -> Iterator[None]:
        """Let ``session`` do every layer's attention inside the block; None means the training attention."""
        attentions = [layer.attention.inner_attention for layer in self.module.layers.values()]
        before = [attention.session for attention in attentions]
        for attention in attentions:
            attention.session = session
        try:
            yield
        finally:
            for attention, previous in zip(attentions, before, strict=True):
                attention.session = previous
