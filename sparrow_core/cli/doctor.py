"""``sparrow plugins doctor``: the conformance suite of a plugin's group, run on one installed plugin."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import Counter
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparrow_core.errors import InputError, PluginError

if TYPE_CHECKING:
    from sparrow_core.testing.run import Check, Suite

_DTYPES = ("float16", "bfloat16", "float32", "float64")


def doctor(
    name: Annotated[
        str,
        typer.Argument(help="A plugin's name, GROUP/NAME where several groups have one, or package.module:Class."),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="The plugin's own options, for example pages=32."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where backends and selectors run.")] = "cpu",
    dtype: Annotated[str, typer.Option(help=f"Of their keys and values: {', '.join(_DTYPES)}.")] = "float32",
) -> None:
    """Run the conformance suite on one plugin and say what fails.

    Exit code 0: nothing fails, 1: something does or the plugin cannot be used, 2: no such plugin or option.
    """
    from rich.markup import escape

    from sparrow_core import registry
    from sparrow_core.cli.common import console
    from sparrow_core.testing.run import SUITES, Case, run_suite

    if dtype not in _DTYPES:
        raise InputError(f"dtype={dtype!r} must be one of {', '.join(_DTYPES)}")
    group, plugin_name = _found(name)
    short = group.removeprefix("sparrow.")
    console.print(f"[bold]{escape(f'{short}/{plugin_name}')}[/]: {escape(_origin(group, plugin_name))}", soft_wrap=True)
    try:
        plugin = registry.load(group, plugin_name)
    except PluginError as error:
        console.print(f"[red]cannot be used:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error
    suite = SUITES.get(group)
    if suite is None:
        if settings:
            raise InputError(f"{short} have no conformance suite, so {settings[0]!r} would be of no use; leave it out")
        console.print(f"loads; {short} have no conformance suite, so nothing else was checked")
        return
    _require_pytest(suite)
    case = Case(group, plugin_name, _settings(plugin, plugin_name, settings or []), device, dtype)
    with console.status("running the conformance suite"):
        checks = run_suite(case, _home(plugin))
    _print(checks, suite)
    if not _is_well(checks):
        raise typer.Exit(1)


def _found(name: str) -> tuple[str, str]:
    """(group, name) of the plugin meant. Raises PluginError when none is, or several are."""
    from sparrow_core.registry import GROUPS, names

    wanted, slash, rest = name.partition("/")
    if slash:
        group = wanted if wanted.startswith("sparrow.") else f"sparrow.{wanted}"
        if group not in GROUPS:
            raise PluginError(f"plugin group {wanted!r} is unknown; the groups are {', '.join(GROUPS)}")
        if ":" not in rest and rest not in names(group):
            raise PluginError(_unknown(rest, {group: names(group)}))
        return group, rest
    if ":" in name:
        return _group_of_class(name), name
    by_group = {group: names(group) for group in GROUPS}
    holding = [group for group in GROUPS if name in by_group[group]]
    if not holding:
        raise PluginError(_unknown(name, by_group))
    if len(holding) > 1:
        choices = " or ".join(f"{group.removeprefix('sparrow.')}/{name}" for group in holding)
        raise PluginError(f"{name!r} is a plugin of {len(holding)} groups; say {choices}")
    return holding[0], name


def _unknown(name: str, by_group: dict[str, list[str]]) -> str:
    known = [f"{group.removeprefix('sparrow.')}/{each}" for group, found in by_group.items() for each in found]
    close = get_close_matches(name, [each.partition("/")[2] for each in known], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no plugin is called {name!r}{hint} Known: {', '.join(known) or 'none'}".replace("' Known", "'; known")


def _group_of_class(path: str) -> str:
    """The group whose contract the class at ``package.module:Class`` derives from. Raises PluginError."""
    from sparrow_core import contracts

    module, _, attribute = path.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise PluginError(f"{path!r} cannot be loaded: {reason}; mend the path or the module") from error
    kinds: dict[str, type[contracts.Plugin]] = {
        "sparrow.backends": contracts.AttentionBackend,
        "sparrow.selectors": contracts.PageSelector,
        "sparrow.policies": contracts.SparsityPolicy,
        "sparrow.cost_models": contracts.CostModel,
    }
    for group, contract in kinds.items():
        if inspect.isclass(target) and issubclass(target, contract):
            return group
    names = ", ".join(contract.__name__ for contract in kinds.values())
    raise PluginError(f"{path!r} derives from none of {names}; name its group, as in rewards/{path}")


def _origin(group: str, name: str) -> str:
    from sparrow_core.registry import known

    if ":" in name:
        return "named by its path"
    infos = [info for info in known(group) if info.name == name]
    return " and ".join(f"{info.target} of {info.origin}" for info in infos)


def _require_pytest(suite: Suite) -> None:
    needed = ["pytest", "hypothesis"] if suite.on_device else ["pytest"]
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        raise InputError(f"{suite.name} needs {' and '.join(missing)}; run pip install {' '.join(missing)}")


def _settings(plugin: Any, name: str, texts: list[str]) -> dict[str, Any]:
    """The plugin's options as JSON types. Raises InputError when one is missing, unknown or out of range."""
    from sparrow_core.config.load import validate
    from sparrow_core.config.overrides import apply_overrides

    default = plugin.Config.model_fields["type"].default
    named = {"type": default if isinstance(default, str) else name}
    config = validate(plugin.Config, apply_overrides(plugin.Config, named, texts), f"options of {name}")
    result: dict[str, Any] = config.model_dump(mode="json")
    return result


def _home(plugin: Any) -> Path:
    """The plugin's top-level package directory, or its file where it is a module of its own."""
    module = sys.modules[plugin.__module__.partition(".")[0]]
    return Path(module.__path__[0] if hasattr(module, "__path__") else module.__file__ or "")


def _is_well(checks: list[Check]) -> bool:
    outcomes = {check.outcome for check in checks}
    return "passed" in outcomes and "failed" not in outcomes


def _print(checks: list[Check], suite: Suite) -> None:
    """Failures first, those of one cause together; then what was skipped, and the counts."""
    from rich.markup import escape

    from sparrow_core.cli.common import console

    failed = [check for check in checks if check.outcome == "failed"]
    for (message, place), titles in _causes(failed).items():
        for line in titles:
            console.print(f"[red]failed:[/] {escape(line)}", soft_wrap=True)
        for line in [*message.splitlines(), *([f"at {place}"] if place else [])]:
            console.print(f"    {escape(line)}", soft_wrap=True)
    reasons = Counter(check.message for check in checks if check.outcome == "skipped")
    for reason, count in reasons.items():
        console.print(f"[yellow]skipped:[/] {count} x {escape(reason)}", soft_wrap=True)
    counts = {"passed": len(checks) - len(failed) - reasons.total(), "failed": len(failed), "skipped": reasons.total()}
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count or outcome == "passed")
    hint = "" if counts["passed"] or failed else "; no check could be made"
    color = "green" if _is_well(checks) else "red"
    console.print(f"[{color}]{suite.name}:[/] {summary}{hint}")


def _causes(failed: list[Check]) -> dict[tuple[str, str], list[str]]:
    """Titles by (message, place). Of a check that fails in several cases, the first one's message stands for all."""
    by_title: dict[str, list[Check]] = {}
    for check in failed:
        by_title.setdefault(check.title, []).append(check)
    causes: dict[tuple[str, str], list[str]] = {}
    for title, cases in by_title.items():
        first = cases[0]
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        line = f"{title} ({first.case}{more})" if first.case else title
        causes.setdefault((first.message, first.place), []).append(line)
    return causes
