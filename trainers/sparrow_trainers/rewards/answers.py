"""Finding the answer in a completion's text, and what it is compared with in the prompt's fields."""

from __future__ import annotations

import re
from typing import Any

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Completion

_FENCE = re.compile(r"[ \t]*```[ \t]*([\w+-]*)([^`]*)$")
_BRACE = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_LANGUAGES = frozenset({"", "python", "python3", "py"})


def last_code_block(text: str) -> str | None:
    """The last closed fenced block that is Python or names no language."""
    found: str | None = None
    language: str | None = None
    block: list[str] = []
    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line)
        if fence is None or (language is not None and (fence[1] or fence[2].strip())):
            block.append(line)
        elif language is None:
            language, block = fence[1].lower(), []
        else:
            found = "".join(block) if language in _LANGUAGES else found
            language = None
    return found


def last_tagged(text: str, tag: str) -> str | None:
    """What stands in the last ``<tag>...</tag>``, without space around it."""
    _, opened, rest = text.rpartition(f"<{tag}>")
    answer, closed, _ = rest.partition(f"</{tag}>")
    return answer.strip() if opened and closed else None


def last_boxed(text: str) -> str | None:
    r"""The argument of the last closed ``\boxed{...}``, braces matched."""
    opened: list[int | None] = []
    start, end = -1, -1
    for brace in _BRACE.finditer(text):
        if brace[0] == "}":
            began = opened.pop() if opened else None
            if began is not None and began > start:
                start, end = began, brace.start()
        elif brace[0].endswith("{") and brace[0] != r"\{":
            opened.append(brace.end() if len(brace[0]) > 1 else None)
    return text[start:end].strip() if start >= 0 else None


def last_line(text: str) -> str | None:
    """The last line that is not blank, without space around it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def prompt_field(completion: Completion, name: str, key: str) -> Any:
    """The prompt's field ``name``, which the configuration's ``key`` asks for. Raises InputError when it has none."""
    if name not in completion.fields:
        known = ", ".join(sorted(completion.fields)) or "none"
        raise InputError(f"{key}={name!r} is no field of the prompt; its fields: {known}")
    return completion.fields[name]
