"""A source's prompts with their token ids, those that are too long refused or left out."""

from __future__ import annotations

import logging
from typing import Any

from sparrow_core import registry
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import PromptSource
from sparrow_trainers.data.config import DataConfig
from sparrow_trainers.data.encode import EncodedPrompt, encode_example, prompt_text
from sparrow_trainers.data.order import PromptOrder

logger = logging.getLogger(__name__)


def build_source(config: DataConfig) -> PromptSource:
    """Raises InputError when the source cannot be read or is empty."""
    source_class: Any = registry.load("sparrow.data", config.source.type)
    source: PromptSource = source_class(config.source)
    if len(source) == 0:
        raise InputError(f"data.source ({config.source.type}) has no prompts; give at least one")
    return source


class PromptSet:
    """The prompts to train on, by an index from 0 on that leaves no gap where prompts were dropped.

    With ``data.max_prompt_tokens`` every prompt is encoded once at the start. Raises InputError for a prompt past it
    (``too_long=error``), or when none is left.
    """

    def __init__(self, source: PromptSource, tokenizer: Any, config: DataConfig) -> None:
        self.source = source
        self.num_dropped = 0
        """Prompts left out because they are longer than ``data.max_prompt_tokens``."""
        self._tokenizer = tokenizer
        self._config = config
        self._kept: list[int] | range = range(len(source))
        if config.max_prompt_tokens is not None:
            self._kept = [index for index in range(len(source)) if self._fits(index, config.max_prompt_tokens)]
            self.num_dropped = len(source) - len(self._kept)
        if self.num_dropped:
            logger.warning(
                "%d of %d prompts have more than data.max_prompt_tokens=%d tokens and are left out",
                *(self.num_dropped, len(source), config.max_prompt_tokens),
            )
        if not self._kept:
            raise InputError(
                f"all {len(source)} prompts have more than data.max_prompt_tokens={config.max_prompt_tokens} tokens; "
                "raise it"
            )

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> EncodedPrompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        example, config = self.source[self._kept[index]], self._config
        return EncodedPrompt(
            example,
            prompt_text(example, self._tokenizer, config.chat, system=config.system),
            encode_example(example, self._tokenizer, config.chat, system=config.system),
        )

    def order(self) -> PromptOrder:
        """A fresh order over these prompts, at its start."""
        return PromptOrder(len(self), self._config.seed, shuffle=self._config.shuffle)

    def _fits(self, index: int, limit: int) -> bool:
        config, example = self._config, self.source[index]
        num_tokens = len(encode_example(example, self._tokenizer, config.chat, system=config.system))
        if num_tokens > limit and config.too_long == "error":
            raise InputError(
                f"prompt {example.prompt_id} has {num_tokens} tokens, more than data.max_prompt_tokens={limit}; "
                "raise it, or leave such prompts out with data.too_long=drop"
            )
        return num_tokens <= limit


def load_prompts(config: DataConfig, tokenizer: Any) -> PromptSet:
    """The prompts of ``config``. Raises InputError as ``build_source`` and ``PromptSet`` do."""
    return PromptSet(build_source(config), tokenizer, config)
