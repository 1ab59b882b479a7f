"""Sources built as a run builds them, and a tokenizer of one token per word."""

from __future__ import annotations

from typing import Any

from sparrow_core.config import validate
from sparrow_core.train_contracts import PromptSource
from sparrow_trainers.data import DataConfig
from sparrow_trainers.data.prompt_set import build_source


class WordTokenizer:
    def __init__(self, chat: bool = True) -> None:
        self.chat_template = "words" if chat else None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        turns = [f"<{message['role']}> {message['content']}" for message in messages]
        return " ".join([*turns, "<assistant>"] if add_generation_prompt else turns)


def data_config(source: dict[str, Any], **settings: Any) -> DataConfig:
    return validate(DataConfig, {"source": source, **settings})


def source_of(kind: str, **settings: Any) -> PromptSource:
    return build_source(data_config({"type": kind, **settings}))
