"""Plugins from other packages are listed and examined; what is wrong with one is said in words, and nothing is lost."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparrow_core import registry
from sparrow_core.cli import main
from sparrow_core.contracts import API_VERSION

EXAMPLES = Path(__file__).parents[2] / "examples"
Capture = pytest.CaptureFixture[str]


def test_the_examples_pass_their_own_tests(installed: Path, tmp_path: Path) -> None:
    tests = [str(EXAMPLES / name / "tests") for name in ("plugin_policy", "plugin_backend")]
    options = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(EXAMPLES)]
    environment = os.environ | {"PYTHONPATH": str(installed), "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_list_shows_each_plugin_with_its_origin_and_broken_ones_with_the_reason(
    site: Path, capsys: Capture
) -> None:
    assert main(["plugins", "policies"]) == 0
    policies = capsys.readouterr().out
    assert "sparrow-proportional 0.1.0" in policies
    assert "sparrow_policies.static:StaticPolicy" in policies, "a broken plugin hides no other"
    assert "No module named 'a_package_that_is_not_there'" in policies
    assert f"api_version 0 but this sparrow has {API_VERSION}" in policies
    assert main(["plugins", "list", "backends"]) == 0
    assert "sparrow-chunked 0.1.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "suite"),
    [
        (["backends/chunked", "chunk_pages=2", "--dtype", "bfloat16"], "BackendConformance"),
        (["sparrow_proportional:ProportionalPolicy", "share=0.25"], "PolicyConformance"),
        (["window"], "SelectorConformance"),
        (["analytic", "model=qwen3-4b"], "CostModelConformance"),
    ],
    ids=["example backend", "example policy by its path", "built-in selector", "built-in cost model"],
)
def test_doctor_passes_a_good_plugin_and_leaves_nothing_behind(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, arguments: list[str], suite: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "doctor", *arguments]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(rf"{suite}: \d+ passed", out.splitlines()[-1]), "nothing failed or was skipped"
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_raises_in_observe_is_reported_once_with_the_place(site: Path, capsys: Capture) -> None:
    assert main(["plugins", "doctor", "raises_in_observe"]) == 1
    out = capsys.readouterr().out
    assert "broken-plugins 3.0" in out
    assert "failed: saved state continues identically" in out
    assert out.count("ZeroDivisionError: no tokens in bin 3") == 1
    assert f"at {site / 'broken_policies.py'}:22 in observe" in out
    assert re.fullmatch(r"PolicyConformance: 1 passed, \d+ failed", out.splitlines()[-1])


def test_a_policy_below_the_least_budget_is_told_both_numbers(site: Path, capsys: Capture) -> None:
    assert main(["plugins", "doctor", "too_few_pages"]) == 1
    out = capsys.readouterr().out
    assert "the schedule has sink_pages=0 where the layout has 1" in out
    assert "budgets() gives 2 pages, below sink + recent + 1 = 4" in out


def test_a_plugin_that_kills_the_process_is_reported(site: Path, capsys: Capture) -> None:
    assert main(["plugins", "doctor", "dies"]) == 1
    out = capsys.readouterr().out
    assert "failed: schedules are valid before and after observing" in out
    assert "killed by SIGABRT" in out
    assert "in schedule" in out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("old", "written for api_version 0"),
        ("no_import", "No module named 'a_package_that_is_not_there'"),
        ("rewards/shared_name", "rewards have no conformance suite"),
    ],
)
def test_what_cannot_be_examined_says_why(site: Path, capsys: Capture, name: str, reason: str) -> None:
    assert main(["plugins", "doctor", name]) == (0 if "suite" in reason else 1)
    out = capsys.readouterr().out
    assert reason in out
    assert "broken-plugins 3.0" in out


REFUSED = {
    "unknown name": (["proportionate"], "did you mean 'proportional'?"),
    "unknown in the group": (["backends/proportional"], "no plugin is called 'proportional'"),
    "unknown group": (["polices/dense"], "plugin group 'polices' is unknown"),
    "two groups": (["shared_name"], "say policies/shared_name or rewards/shared_name"),
    "no such module": (["no_such_module:Policy"], "No module named 'no_such_module'"),
    "no such class": (["sparrow_proportional:Policy"], "has no attribute 'Policy'"),
    "no plugin class": (["sparrow_proportional:ProportionalConfig"], "derives from none of AttentionBackend"),
    "option missing": (["static"], "options of static: pages is missing; set pages=..."),
    "option unknown": (["proportional", "shar=0.5"], "unknown key 'shar'; did you mean 'share'?"),
    "option out of range": (["proportional", "share=2"], "share=2 must be less than or equal to 1"),
    "not an option": (["dense", "pages"], "override 'pages' must be key=value"),
    "dtype": (["chunked", "--dtype", "int8"], "dtype='int8' must be one of"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_exist_is_refused_with_exit_code_2(
    site: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    assert main(["plugins", "doctor", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_missing_pytest_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def without(name: str, *rest: Any) -> Any:
        return None if name == "pytest" else importlib.util.find_spec(name, *rest)

    monkeypatch.setattr("sparrow_core.cli.doctor.find_spec", without)
    assert main(["plugins", "doctor", "dense"]) == 2
    assert "PolicyConformance needs pytest; run pip install pytest" in capsys.readouterr().err


@pytest.mark.parametrize("group", registry.GROUPS)
def test_every_group_with_plugins_has_a_suite_or_is_known_to_have_none(group: str) -> None:
    from sparrow_core.testing.run import SUITES

    without = {"objectives", "rewards", "commands", "data", "distill_losses"}
    assert group in SUITES or group.removeprefix("sparrow.") in without
