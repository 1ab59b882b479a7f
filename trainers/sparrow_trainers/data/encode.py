"""Token ids of a prompt, with the model's chat template where it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparrow_core.errors import InputError
from sparrow_core.prompts import Prompt, encode_prompts
from sparrow_core.train_contracts import PromptExample


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    example: PromptExample
    text: str
    """As the model sees it; chat messages rendered."""
    token_ids: tuple[int, ...]


def encode_example(example: PromptExample, tokenizer: Any, chat: bool, *, system: str | None = None) -> tuple[int, ...]:
    """Token ids of ``example``, with the template's generation prompt at the end where it is used.

    ``chat`` renders a text prompt as one user message; messages always use the template. ``system`` is put before
    messages that have no system message. Raises InputError when there is no text, no template, or no token.
    """
    messages = _messages(example, chat, system)
    if messages is not None:
        _check_template(example, tokenizer)
        prompt = Prompt(example.prompt_id, messages=messages)
    else:
        prompt = Prompt(example.prompt_id, text=_text(example))
    (token_ids,) = encode_prompts([prompt], tokenizer, chat=chat)
    if not token_ids:
        raise InputError(f"prompt {example.prompt_id} has no tokens; give it some text or leave it out")
    return token_ids


def prompt_text(example: PromptExample, tokenizer: Any, chat: bool, *, system: str | None = None) -> str:
    """The text that ``encode_example`` encodes."""
    messages = _messages(example, chat, system)
    if messages is None:
        return _text(example)
    _check_template(example, tokenizer)
    text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return text


def _messages(example: PromptExample, chat: bool, system: str | None) -> tuple[dict[str, str], ...] | None:
    messages = example.messages
    if messages is None:
        if not chat:
            return None
        messages = ({"role": "user", "content": _text(example)},)
    if not messages:
        raise InputError(f"prompt {example.prompt_id} has an empty list of messages; give at least one")
    if system is not None and messages[0].get("role") != "system":
        messages = ({"role": "system", "content": system}, *messages)
    return messages


def _text(example: PromptExample) -> str:
    if example.text is None:
        raise InputError(f"prompt {example.prompt_id} has neither text nor messages; its source must give one of them")
    return example.text


def _check_template(example: PromptExample, tokenizer: Any) -> None:
    if getattr(tokenizer, "chat_template", None) is None:
        fix = "take a model with a template" if example.messages is not None else "set data.chat=false"
        raise InputError(f"prompt {example.prompt_id} needs a chat template but the model's tokenizer has none; {fix}")
