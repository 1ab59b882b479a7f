"""A conformance suite run on one plugin, in a process of its own: a plugin that crashes takes nothing with it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Suite:
    """A class of ``sparrow_core.testing`` and its attribute that names the plugin."""

    name: str
    attribute: str
    on_device: bool


SUITES = {
    "sparrow.backends": Suite("BackendConformance", "backend", on_device=True),
    "sparrow.selectors": Suite("SelectorConformance", "selector", on_device=True),
    "sparrow.policies": Suite("PolicyConformance", "policy", on_device=False),
    "sparrow.cost_models": Suite("CostModelConformance", "cost_model", on_device=False),
}

_MODULE = """\
import json, sys
import torch
from sparrow_core import registry, testing
case = json.loads(sys.argv[1])
plugin = registry.load(case["group"], case["name"])
members = {case["attribute"]: plugin, "config": plugin.Config.model_validate(case["settings"])}
if case["on_device"]:
    import hypothesis
    hypothesis.settings.register_profile("one cause", report_multiple_bugs=False)
    hypothesis.settings.load_profile("one cause")
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
    "-p", "no:cacheprovider", "-v", "--tb", "native", "--junit-xml", root + "/report.xml",
]))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """What a suite is run on. ``device`` and ``dtype`` matter to backends and selectors alone."""

    group: str
    name: str
    """As ``registry.load`` takes it."""
    settings: Mapping[str, Any]
    """The plugin's whole configuration as JSON types."""
    device: str = "cpu"
    dtype: str = "float32"

    @property
    def suite(self) -> Suite:
        return SUITES[self.group]


@dataclass(frozen=True, slots=True)
class Check:
    """One test of the suite."""

    title: str
    """What is checked, in words."""
    case: str
    """The parameters of one of several cases; empty for a test that has but one."""
    outcome: Outcome
    message: str = ""
    place: str = ""
    """Where in the plugin's own code it failed; empty where the code returned and only its result is wrong."""


def run_suite(case: Case, home: Path) -> list[Check]:
    """Every check of the suite. A run that ends before pytest can report is one failed check that says so.

    Args:
        home: the plugin's own file or package directory.
    """
    suite = case.suite
    told = {
        "path": sys.path,
        "group": case.group,
        "name": case.name,
        "settings": dict(case.settings),
        "suite": suite.name,
        "attribute": suite.attribute,
        "on_device": suite.on_device,
        "device": case.device,
        "dtype": case.dtype,
    }
    with tempfile.TemporaryDirectory(prefix="sparrow-doctor-") as root:
        files = {"test_plugin.py": _MODULE, "run.py": _RUNNER, "pytest.ini": "[pytest]\nverbosity_assertions = 2\n"}
        for name, text in files.items():
            Path(root, name).write_text(text, encoding="utf-8")
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": root}
        environment.pop("PYTEST_ADDOPTS", None)
        done = subprocess.run(
            [sys.executable, f"{root}/run.py", json.dumps(told), root],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        report = Path(root, "report.xml")
        if done.returncode in (0, 1) and report.exists():
            return [_check(each, home) for each in ElementTree.parse(report).iter("testcase")]
    return [_crash(done, home)]


def _check(case: ElementTree.Element, home: Path) -> Check:
    title, parameters = _title(case.get("name", ""))
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            text = found.text or ""
            return Check(title, parameters, "failed", _message(found.get("message", ""), text), _place(text, home))
    skipped = case.find("skipped")
    if skipped is not None:
        return Check(title, parameters, "skipped", skipped.get("message", ""))
    return Check(title, parameters, "passed")


def _crash(done: subprocess.CompletedProcess[str], home: Path) -> Check:
    """The check that was running when the process died, or the last that it said."""
    running = re.findall(r"::(test_\w+(?:\[.*?\])?)", done.stdout)
    if done.returncode < 0 and running:
        title, parameters = _title(running[-1])
        message = f"the process was killed by {signal.Signals(-done.returncode).name}; later checks did not run"
        return Check(title, parameters, "failed", message, _place(done.stderr, home, first=True))
    last = (done.stdout + done.stderr).strip().splitlines()[-12:]
    message = "\n".join([f"the process ended with exit code {done.returncode}", *last])
    return Check("the suite runs to its end", "", "failed", message)


def _title(test: str) -> tuple[str, str]:
    name, _, parameters = test.partition("[")
    return name.removeprefix("test_").replace("_", " "), parameters.removesuffix("]")


def _message(message: str, text: str) -> str:
    """The error in a few lines, and the example that hypothesis found. What an explicit message says in words is not
    said again in terms of the assertion."""
    lines = [line for line in message.removeprefix("AssertionError: ").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("[+")]
    for at, line in enumerate(lines):
        if at and line.startswith("assert "):
            lines = lines[:at]
            break
    example = re.search(r"^.*Falsifying example:.*?\n.*?^\s*\|?\s*\)$", text, re.MULTILINE | re.DOTALL)
    return "\n".join([*lines[:4], *(example.group().splitlines()[:12] if example else [])])


def _place(text: str, home: Path, *, first: bool = False) -> str:
    """The innermost line of the plugin's own code in a traceback; ``first`` where that one is printed first."""
    frames = re.findall(r'File "([^"]+)", line (\d+),? in (\S+)', text)
    own = [f"{file}:{line} in {function}" for file, line, function in frames if Path(file).is_relative_to(home)]
    return own[0 if first else -1] if own else ""
