"""Dotted ``key=value`` overrides on top of a configuration's raw data.

Broader overrides are applied before narrower ones, so their order does not matter; of two for one key the last wins.
Naming another plugin (``policy=static`` or ``policy.type=static``) drops the options of the one before.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from sparrow_core.config import yaml_text
from sparrow_core.config.base import PluginOf
from sparrow_core.config.shape import Node, child, field_at, plugin_name
from sparrow_core.errors import InputError


@dataclass(frozen=True, slots=True)
class Override:
    keys: tuple[str, ...]
    value: Any
    """Parsed as YAML."""
    text: str

    @property
    def depth(self) -> int:
        return len(self.keys) - (self.keys[-1] == "type")


def parse_override(text: str) -> Override:
    key, equals, value = text.partition("=")
    keys = tuple(key.strip().split("."))
    if not equals or not all(keys):
        raise InputError(f"override {text!r} must be key=value with a dotted key, for example rollout.max_tokens=64")
    try:
        return Override(keys, yaml_text.parse(value), text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"override {text!r} has a value that is not YAML: {reason}; quote it") from error


def apply_overrides(root: type[BaseModel], data: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """A copy of ``data`` with the overrides set. Keys are not checked here; validation does that.

    Raises InputError when an override is no ``key=value`` or goes below a plain value.
    """
    result = copy.deepcopy(data)
    for override in sorted((parse_override(text) for text in texts), key=lambda override: override.depth):
        _apply(root, result, override)
    return result


def _apply(root: type[BaseModel], data: dict[str, Any], override: Override) -> None:
    node: Node = root
    section = data
    for key in override.keys[:-1]:
        inside = _section(node, section, key, override)
        node, _ = child(node, section, key)
        section[key] = inside
        section = inside
        # The plugin's options are looked up in the section as it is now.
    last = override.keys[-1]
    if last == "type" and isinstance(node, PluginOf) and section.get("type") != override.value:
        section.clear()
    section[last] = override.value


def _section(node: Node, data: dict[str, Any], key: str, override: Override) -> dict[str, Any]:
    """The mapping below ``key``: what is there, else the field's default plugin, else an empty one."""
    below, value = child(node, data, key)
    if isinstance(below, PluginOf):
        field = field_at(node, data, key)
        if value is None and field is not None:
            value = field.get_default(call_default_factory=False)
        name = plugin_name(value)
        if isinstance(value, str) and name is not None:
            return {"type": name}
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"override {override.text!r} goes below {key!r}, which holds {value!r} and has no keys")
    return value
