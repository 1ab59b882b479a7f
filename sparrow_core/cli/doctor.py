"""``sparrow plugins doctor``: the conformance suite of a plugin's group, run on one installed plugin.

The suite runs in a process of its own, so that a plugin that crashes takes nothing with it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

import typer

from sparrow_core.errors import InputError, PluginError

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class _Suite:
    """A class of ``sparrow_core.testing`` and its attribute that names the plugin."""

    name: str
    attribute: str
    on_device: bool


_SUITES = {
    "sparrow.backends": _Suite("BackendConformance", "backend", on_device=True),
    "sparrow.selectors": _Suite("SelectorConformance", "selector", on_device=True),
    "sparrow.policies": _Suite("PolicyConformance", "policy", on_device=False),
    "sparrow.cost_models": _Suite("CostModelConformance", "cost_model", on_device=False),
}

_DTYPES = ("float16", "bfloat16", "float32", "float64")

_MODULE = """\
import json, sys
import torch
from sparrow_core import registry, testing
case = json.loads(sys.argv[1])
plugin = registry.load(case["group"], case["name"])
members = {case["attribute"]: plugin, "config": plugin.Config.model_validate(case["settings"])}
if case["dtype"]:
    dtype = getattr(torch, case["dtype"])
    members |= {"device": case["device"], "dtype": dtype, "lse_atol": 2e-3 if dtype.itemsize < 4 else 1e-4}
TestPlugin = type("TestPlugin", (getattr(testing, case["suite"]),), members)
"""

_RUNNER = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])["path"]
import pytest
root = sys.argv[2]
sys.exit(pytest.main([
    root + "/test_plugin.py", "--rootdir", root, "-c", root + "/pytest.ini", "--import-mode", "importlib",
    "-p", "no:cacheprovider", "-q", "--tb", "native", "--junit-xml", root + "/report.xml",
]))
"""


@dataclass(frozen=True, slots=True)
class _Check:
    """One test of the suite. ``message`` and ``place`` are empty for one that passed."""

    title: str
    outcome: Outcome
    message: str = ""
    place: str = ""


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
    suite = _SUITES.get(group)
    if suite is None:
        if settings:
            raise InputError(f"{short} have no conformance suite, so {settings[0]!r} would be of no use; leave it out")
        console.print(f"loads; {short} have no conformance suite, so nothing else was checked")
        return
    _require_pytest(suite)
    case = {
        "path": sys.path,
        "group": group,
        "name": plugin_name,
        "suite": suite.name,
        "attribute": suite.attribute,
        "settings": _settings(plugin, plugin_name, settings or []),
        "device": device,
        "dtype": dtype if suite.on_device else None,
    }
    with console.status("running the conformance suite"):
        checks = _run(case, _source_file(plugin))
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


def _require_pytest(suite: _Suite) -> None:
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


def _source_file(plugin: Any) -> str:
    return getattr(sys.modules.get(plugin.__module__), "__file__", None) or ""


def _run(case: dict[str, Any], source: str) -> list[_Check]:
    """Every check of the suite. A run that ends before pytest can report is one failed check that says so."""
    with tempfile.TemporaryDirectory(prefix="sparrow-doctor-") as root:
        for file, text in (("test_plugin.py", _MODULE), ("run.py", _RUNNER), ("pytest.ini", "[pytest]\n")):
            Path(root, file).write_text(text, encoding="utf-8")
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": root}
        environment.pop("PYTEST_ADDOPTS", None)
        done = subprocess.run(
            [sys.executable, f"{root}/run.py", json.dumps(case), root],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        report = Path(root, "report.xml")
        if done.returncode in (0, 1, 2) and report.exists():
            return [_check(each, source) for each in ElementTree.parse(report).iter("testcase")]
    ending = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    last = (done.stdout + done.stderr).strip().splitlines()[-12:]
    return [_Check("the suite runs to its end", "failed", "\n".join([f"the process ended with {ending}", *last]))]


def _check(case: ElementTree.Element, source: str) -> _Check:
    title = case.get("name", "").removeprefix("test_").replace("_", " ")
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            text = found.text or ""
            return _Check(title, "failed", _message(found.get("message", ""), text), _place(text, source))
    skipped = case.find("skipped")
    if skipped is not None:
        return _Check(title, "skipped", skipped.get("message", ""))
    return _Check(title, "passed")


def _message(message: str, text: str) -> str:
    """The error, and the example that hypothesis found, in a few lines."""
    lines = [line for line in message.splitlines() if line.strip()][:6]
    example = re.search(r"^.*Falsifying example:.*?\n.*?^\s*\|?\s*\)$", text, re.MULTILINE | re.DOTALL)
    return "\n".join([*lines, *(example.group().splitlines()[:12] if example else [])])


def _place(text: str, source: str) -> str:
    """The last line of the plugin's own file that ran before the error; empty when none did."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    own = [(line, function) for file, line, function in frames if source and Path(file) == Path(source)]
    return f"{source}:{own[-1][0]} in {own[-1][1]}" if own else ""


def _is_well(checks: list[_Check]) -> bool:
    outcomes = {check.outcome for check in checks}
    return "passed" in outcomes and "failed" not in outcomes


def _print(checks: list[_Check], suite: _Suite) -> None:
    from rich.markup import escape

    from sparrow_core.cli.common import console

    for outcome, color in (("failed", "red"), ("skipped", "yellow")):
        same: dict[tuple[str, str], list[str]] = {}
        for check in checks:
            if check.outcome == outcome:
                same.setdefault((check.message, check.place), []).append(check.title)
        for (message, place), titles in same.items():
            for title in titles:
                console.print(f"[{color}]{outcome}:[/] {escape(title)}", soft_wrap=True)
            for line in [*message.splitlines(), *([f"at {place}"] if place else [])]:
                console.print(f"    {escape(line)}", soft_wrap=True)
    counts = {outcome: sum(check.outcome == outcome for check in checks) for outcome in ("passed", "failed", "skipped")}
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count or outcome == "passed")
    color = "green" if _is_well(checks) else "red"
    hint = "" if counts["passed"] or counts["failed"] else "; no check could be made"
    console.print(f"[{color}]{suite.name}:[/] {summary}{hint}")
