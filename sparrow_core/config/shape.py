"""Which keys are valid where, in models whose plugin sections are known only from the data."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparrow_core.config.base import PluginOf
from sparrow_core.errors import PluginError


@dataclass(frozen=True, slots=True)
class Items:
    """A list of sections or plugins."""

    item: Node


Node = type[BaseModel] | PluginOf | Items | None
"""What can stand below a key; None for a plain value."""


def node_of(annotation: Any, metadata: tuple[Any, ...] = ()) -> Node:
    for marker in metadata:
        if isinstance(marker, PluginOf):
            return marker
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return node_of(args[0], args[1:])
    if origin in (Union, types.UnionType):
        return next((node for arg in args if (node := node_of(arg)) is not None), None)
    if origin in (list, tuple) and args:
        item = node_of(args[0])
        return None if item is None else Items(item)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def model_of(node: Node, data: Any) -> type[BaseModel] | None:
    """The model that validates ``data`` at ``node``; None where there is none or its plugin cannot be loaded."""
    if not isinstance(node, PluginOf):
        return node if isinstance(node, type) else None
    name = plugin_name(data)
    if name is None:
        return None
    try:
        return node.config_class(name)
    except PluginError:
        return None


def plugin_name(data: Any) -> str | None:
    """The ``type`` of a plugin section that is a mapping or a bare name."""
    name = data.get("type") if isinstance(data, Mapping) else data
    return name if isinstance(name, str) else None


def field_at(node: Node, data: Any, key: str) -> FieldInfo | None:
    model = model_of(node, data)
    return None if model is None else model.model_fields.get(key)


def child(node: Node, data: Any, key: str | int) -> tuple[Node, Any]:
    """The node below ``key`` and the data there (None when absent)."""
    if isinstance(key, int):
        inside = data[key] if isinstance(data, list | tuple) and key < len(data) else None
        return (node.item if isinstance(node, Items) else None), inside
    field = field_at(node, data, key)
    below = None if field is None else node_of(field.annotation, tuple(field.metadata))
    return below, data.get(key) if isinstance(data, Mapping) else None


def descend(root: type[BaseModel], data: Any, keys: tuple[str | int, ...]) -> tuple[Node, Any]:
    node: Node = root
    for key in keys:
        node, data = child(node, data, key)
    return node, data


def dotted(keys: tuple[str | int, ...]) -> str:
    """``("a", "b", 0)`` as ``a.b[0]``."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}"
    return text.removeprefix(".")
