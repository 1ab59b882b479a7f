"""Plugins by name: Python entry points, ``pkg.module:Class`` paths, and classes registered in the program.

Nothing is imported before it is asked for. Importing this module does not import torch.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal, overload

from sparrow_core.errors import PluginError

if TYPE_CHECKING:
    from sparrow_core.contracts import AttentionBackend, CostModel, PageSelector, SparsityPolicy

_CONTRACTS = {
    "sparrow.backends": "contracts:AttentionBackend",
    "sparrow.selectors": "contracts:PageSelector",
    "sparrow.policies": "contracts:SparsityPolicy",
    "sparrow.cost_models": "contracts:CostModel",
    "sparrow.data": "train_contracts:PromptSource",
    "sparrow.rewards": "train_contracts:Reward",
    "sparrow.objectives": "train_contracts:ObjectivePart",
    "sparrow.distill_losses": "train_contracts:DistillLoss",
    "sparrow.commands": None,
}
"""Group to the class below ``sparrow_core`` its plugins derive from; None: a function or a typer.Typer."""

GROUPS = tuple(_CONTRACTS)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One known plugin and, where it cannot be used, the reason."""

    name: str
    group: str
    distribution: str
    """Name of the distribution that declares it; empty for a class registered in the program."""
    version: str
    target: str
    """``pkg.module:Class``."""
    error: str | None = None

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}".strip() or "this program"

    def __str__(self) -> str:
        return self.name if self.name == self.target else f"{self.name} ({self.origin}, {self.target})"


_registered: dict[tuple[str, str], Any] = {}


def register(group: str, name: str, plugin: Any) -> None:
    """Make ``plugin`` known under ``name`` in this process, for notebooks and tests.

    Raises PluginError when the name is taken or the class breaks its contract.
    """
    taken = [info for info, _ in _candidates(group) if info.name == name]
    if taken and _registered.get((group, name)) is not plugin:
        raise PluginError(f"{group} already has {taken[0]}; register the class under another name than {name!r}")
    reason = _contract_breach(group, plugin)
    if reason:
        raise PluginError(f"{group} cannot take {name!r}: {reason}")
    _registered[group, name] = plugin


def unregister(group: str, name: str) -> None:
    """Forget a class given to ``register``."""
    if _registered.pop((group, name), None) is None:
        raise PluginError(f"{group} has no registered {name!r}; only names given to register() can be removed")


def names(group: str) -> list[str]:
    """Sorted names in ``group``, without importing anything."""
    return sorted({info.name for info, _ in _candidates(group)})


def known(group: str) -> list[PluginInfo]:
    """Every plugin of ``group`` by name. Each is imported; what fails carries its reason in ``error``."""
    found = sorted(_candidates(group), key=lambda item: (item[0].name, item[0].distribution))
    infos = [info for info, _ in found]
    result = []
    for info, source in found:
        same = [other for other in infos if other.name == info.name]
        result.append(replace(info, error=_duplicates(same) if len(same) > 1 else _failure(group, info, source)))
    return result


@overload
def load(group: Literal["sparrow.backends"], name: str) -> type[AttentionBackend]: ...
@overload
def load(group: Literal["sparrow.selectors"], name: str) -> type[PageSelector]: ...
@overload
def load(group: Literal["sparrow.policies"], name: str) -> type[SparsityPolicy]: ...
@overload
def load(group: Literal["sparrow.cost_models"], name: str) -> type[CostModel]: ...
@overload
def load(group: str, name: str) -> Any: ...
def load(group: str, name: str) -> Any:
    """The plugin called ``name`` (or at ``pkg.module:Class``) in ``group``; for commands, a function or typer.Typer.

    Raises PluginError when the name is unknown or defined twice, the import fails, or the class breaks its contract.
    """
    if ":" in name:
        info, source = PluginInfo(name, group, "", "", name), EntryPoint(name, name, group)
        _check_group(group)
    else:
        matches = [item for item in _candidates(group) if item[0].name == name]
        if not matches:
            raise PluginError(_unknown(group, name))
        if len(matches) > 1:
            raise PluginError(f"{group} has two plugins {name!r}: {_duplicates([info for info, _ in matches])}")
        info, source = matches[0]
    try:
        plugin = _resolve(source)
    except (Exception, SystemExit) as error:
        raise PluginError(f"{group}: {info} failed to load: {_reason(error)}") from error
    breach = _contract_breach(group, plugin)
    if breach:
        raise PluginError(f"{group}: {info} cannot be used: {breach}")
    return plugin


def _check_group(group: str) -> None:
    if group not in _CONTRACTS:
        raise PluginError(f"plugin group {group!r} is unknown; the groups are {', '.join(GROUPS)}")


def _candidates(group: str) -> Iterator[tuple[PluginInfo, Any]]:
    """Each declared plugin with what it loads from: an EntryPoint, or the registered class itself."""
    _check_group(group)
    yield from _declared(group, tuple((path, _changed(path)) for path in sys.path))
    for (registered_group, name), plugin in _registered.items():
        if registered_group == group:
            target = f"{plugin.__module__}:{getattr(plugin, '__qualname__', type(plugin).__name__)}"
            yield PluginInfo(name, group, "", "", target), plugin


@lru_cache(maxsize=64)
def _declared(group: str, places: tuple[tuple[str, int], ...]) -> tuple[tuple[PluginInfo, EntryPoint], ...]:
    """Each entry point of ``group``; metadata is read again only when ``sys.path`` or a directory on it changes."""
    found = []
    for entry in entry_points(group=group):
        dist = entry.dist
        name, version = (dist.name, dist.version) if dist is not None else ("unknown distribution", "")
        found.append((PluginInfo(entry.name, group, name, version, entry.value), entry))
    return tuple(found)


def _changed(path: str) -> int:
    """When an entry was last added to or removed from the directory, in ns; 0 where there is none."""
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0


def _resolve(source: Any) -> Any:
    if not isinstance(source, EntryPoint):
        return source
    module, _, attribute = source.value.partition("[")[0].partition(":")
    plugin: Any = importlib.import_module(module.strip())
    for part in attribute.strip().split("."):
        plugin = getattr(plugin, part)
    return plugin


def _failure(group: str, info: PluginInfo, source: Any) -> str | None:
    try:
        return _contract_breach(group, _resolve(source))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reported to the user as the plugin's reason
        return _reason(error)


def _reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, ModuleNotFoundError):
        text += "; install the package or mend the path"
    return text


def _duplicates(infos: list[PluginInfo]) -> str:
    places = " and ".join(f"{info.target} of {info.origin}" for info in infos)
    return f"defined by {places}; uninstall one, or name the class as pkg.module:Class"


def _unknown(group: str, name: str) -> str:
    infos = known(group)
    usable = [info.name for info in infos if info.error is None]
    text = f"{group} has no plugin {name!r}; known: {', '.join(usable) or 'none'}"
    close = get_close_matches(name, usable, n=1)
    if close:
        text += f"; did you mean {close[0]!r}?"
    broken = [f"{info}: {info.error}" for info in infos if info.error is not None]
    if broken:
        text += " Cannot be used: " if text.endswith("?") else ". Cannot be used: "
        text += "; ".join(broken)
    return text


def _contract_breach(group: str, plugin: Any) -> str | None:
    """Why ``plugin`` does not fulfil the contract of ``group``, with the fix; None when it does."""
    contract_name = _CONTRACTS[group]
    if contract_name is None:
        import typer

        is_command = isinstance(plugin, typer.Typer) or inspect.isfunction(plugin)
        return None if is_command else f"a command is a function or a typer.Typer, not {plugin!r}"
    from sparrow_core import contracts

    module, _, class_name = contract_name.partition(":")
    contract: type[contracts.Plugin] = getattr(importlib.import_module(f"sparrow_core.{module}"), class_name)
    place = f"sparrow_core.{module}.{class_name}"
    if not (inspect.isclass(plugin) and issubclass(plugin, contract)):
        return f"it is {plugin!r}; derive a class from {place}"
    if plugin.api_version != contracts.API_VERSION:
        return (
            f"it is written for api_version {plugin.api_version} but this sparrow has {contracts.API_VERSION}; "
            "install the release of either that matches"
        )
    config = getattr(plugin, "Config", None)
    if not (inspect.isclass(config) and issubclass(config, contracts.PluginConfig)):
        return "it has no Config; give it a class attribute Config derived from sparrow_core.contracts.PluginConfig"
    missing = sorted(getattr(plugin, "__abstractmethods__", ()))
    if missing:
        return f"it does not define {', '.join(missing)}; define what {place} declares"
    return None
