"""Finding the answer in a completion's text, and what it is compared with in the prompt's fields."""

from __future__ import annotations

import re
from typing import Any

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Completion

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_LANGUAGES = frozenset({"", "python", "python3", "py"})


def last_code_block(text: str) -> str | None:
    """The last closed fenced block that is Python or names no language."""
    blocks = [match[2] for match in _FENCE.finditer(text) if match[1].lower() in _LANGUAGES]
    return blocks[-1] if blocks else None


def last_tagged(text: str, tag: str) -> str | None:
    """What stands in the last ``<tag>...</tag>``, without space around it."""
    _, opened, rest = text.rpartition(f"<{tag}>")
    answer, closed, _ = rest.partition(f"</{tag}>")
    return answer.strip() if opened and closed else None


def last_boxed(text: str) -> str | None:
    r"""The argument of the last closed ``\boxed{...}``, braces matched."""
    found: str | None = None
    for match in re.finditer(r"\\boxed\s*\{", text):
        depth = 1
        for index in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[index], 0) if text[index - 1] != "\\" else 0
            if depth == 0:
                found = text[match.end() : index].strip()
                break
    return found


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
