"""Validation errors as lines a user can act on: the dotted key, the value given, what is allowed."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sparrow_core.config.shape import child, descend, dotted, field_at, model_of, plugin_name
from sparrow_core.errors import InputError


def input_error(error: ValidationError, root: type[BaseModel], data: Any, source: str) -> InputError:
    """``source`` says where the data came from: a file name, or "configuration"."""
    lines = [_line(detail, root, data) for detail in error.errors(include_url=False)]
    if len(lines) == 1:
        return InputError(f"{source}: {lines[0]}")
    return InputError(f"{source}: {len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines))


def _line(detail: ErrorDetails, root: type[BaseModel], data: Any) -> str:
    keys = detail["loc"]
    key, value = dotted(keys), detail["input"]
    message = str(detail.get("ctx", {}).get("error") or detail["msg"])
    if not keys:
        return message
    match detail["type"]:
        case "extra_forbidden":
            return _unknown_key(root, data, keys)
        case "missing":
            return f"{key} is missing; set {key}=...{_description(root, data, keys)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            node, inside = descend(root, data, keys)
            return f"{key}={_show(value)} must be a section with the keys {', '.join(_valid_keys(node, inside))}"
        case "value_error":
            joint = " " if message.startswith(("must ", "has ", "needs ")) else ": "
            return f"{key}={_show(value)}{joint}{message}"
    rule = message.partition(", unable to parse")[0]
    for opening in ("Input should ", "String should ", "Value should "):
        rule = rule.replace(opening, "must ", 1)
    return f"{key}={_show(value)} {rule}{_description(root, data, keys)}"


def _unknown_key(root: type[BaseModel], data: Any, keys: tuple[str | int, ...]) -> str:
    parent, unknown = keys[:-1], str(keys[-1])
    node, inside = descend(root, data, parent)
    valid = _valid_keys(node, inside)
    close = get_close_matches(unknown, valid, n=1)
    suggestions = [dotted((*parent, name)) for name in close] or _sections_with(root, unknown)
    text = f"unknown key {dotted(keys)!r}"
    if suggestions:
        text += f"; did you mean {suggestions[0]!r}?"
    place = dotted(parent) or "the configuration"
    name = plugin_name(inside)
    plugin = f" (type {name})" if parent and name is not None else ""
    return f"{text} Valid keys of {place}{plugin}: {', '.join(valid)}".replace("' Valid", "'; valid")


def _valid_keys(node: Any, data: Any) -> list[str]:
    model = model_of(node, data)
    return [] if model is None else sorted(model.model_fields)


def _sections_with(root: type[BaseModel], key: str) -> list[str]:
    """Dotted keys one level down whose last part is ``key``."""
    found = []
    for section in root.model_fields:
        node, _ = child(root, {}, section)
        if isinstance(node, type) and key in node.model_fields:
            found.append(f"{section}.{key}")
    return found


def _description(root: type[BaseModel], data: Any, keys: tuple[str | int, ...]) -> str:
    parent, inside = descend(root, data, keys[:-1])
    field = field_at(parent, inside, str(keys[-1]))
    return f" ({field.description})" if field is not None and field.description else ""


def _show(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
