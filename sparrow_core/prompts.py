"""Reading prompts: JSONL (a text field or chat ``messages``) or plain text, one prompt per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparrow_core.errors import InputError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the user wrote it: text, or chat messages to be rendered by the model's template."""

    source: str
    """Where it came from, for error messages: ``file:line``."""
    text: str | None = None
    messages: tuple[dict[str, str], ...] | None = None


def read_prompts(path: str | Path, *, field: str = "prompt", limit: int | None = None) -> list[Prompt]:
    """Prompts of a ``.jsonl`` or text file, in order.

    A JSONL row holds ``field`` (text) or ``messages`` (a list of {role, content}). Raises InputError when the file is
    missing, empty, not valid JSONL, or a row lacks the field.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"prompts.path={str(path)!r} is not a file; give a .jsonl or .txt file of prompts")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"prompts.path={str(path)!r} is not UTF-8 text: {error}") from error
    numbered = [(n, line) for n, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise InputError(f"prompts.path={str(path)!r} holds no prompts; give at least one non-empty line")
    is_jsonl = path.suffix in {".jsonl", ".ndjson", ".json"}
    rows = numbered if limit is None else numbered[:limit]
    if not is_jsonl:
        return [Prompt(f"{path}:{n}", text=line) for n, line in rows]
    return [_json_prompt(f"{path}:{n}", line, field) for n, line in rows]


def _json_prompt(source: str, line: str, field: str) -> Prompt:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{source} is not valid JSON: {error}; write one JSON object per line") from error
    if not isinstance(row, dict):
        raise InputError(f"{source} is a JSON {type(row).__name__}; write one JSON object per line")
    if isinstance(row.get(field), str):
        if not row[field].strip():
            raise InputError(f"{source} has an empty {field!r}; give its text or leave the row out")
        return Prompt(source, text=row[field])
    if isinstance(row.get("messages"), list):
        return Prompt(source, messages=tuple(_message(source, m) for m in row["messages"]))
    raise InputError(f"{source} has neither {field!r} nor 'messages'; its fields are {sorted(row)}. Set prompts.field")


def _message(source: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
        raise InputError(f"{source} has a message without text 'role' and 'content': {message!r}")
    return {"role": message["role"], "content": message["content"]}


def encode_prompts(prompts: list[Prompt], tokenizer: Any, *, chat: bool) -> list[tuple[int, ...]]:
    """Token ids of each prompt. ``chat`` renders text prompts as one user message; messages always use the template."""
    encoded = []
    for prompt in prompts:
        messages = prompt.messages
        if messages is None and chat:
            messages = ({"role": "user", "content": prompt.text or ""},)
        if messages is None:
            ids = tokenizer(prompt.text)["input_ids"]
        else:
            if getattr(tokenizer, "chat_template", None) is None:
                raise InputError(
                    f"{prompt.source} needs a chat template but the model's tokenizer has none; set prompts.chat=false"
                )
            text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        encoded.append(tuple(int(i) for i in ids))
    return encoded
