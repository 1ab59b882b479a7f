from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparrow_core.errors import InputError
from sparrow_trainers.rewards import sandbox
from sparrow_trainers.rewards.code import CodeConfig, CodeReward, read_tests, same
from tests.rewards.helpers import completion, needs_sandbox


@pytest.fixture(scope="module")
def reward() -> CodeReward:
    return CodeReward(CodeConfig(score="share", test_limit_s=3))


def block(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\n"


ECHO = {"input": "2 3\n", "output": "5\n"}
ADD = {"call": "add", "arguments": [2, 3], "expected": 5}
ASSERT = {"assert": "assert add(2, 3) == 5"}


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "tests", "score"),
    [
        ("a, b = map(int, input().split())\nprint(a + b)", [ECHO], 1.0),
        ("print(5, ' ')\nprint()", [ECHO], 1.0),
        ("print(6)", [ECHO], 0.0),
        ("import sys\nprint(5)\nsys.exit(1)", [ECHO], 0.0),
        ("if __name__ == '__main__': print(5)", [ECHO], 1.0),
        ("def add(a, b): return a + b", [ADD, ASSERT], 1.0),
        ("def add(a, b): return a - b", [ADD, ASSERT], 0.0),
        ("def add(a, b): return a + b\nif __name__ == '__main__': 1 / 0", [ADD, ASSERT], 1.0),
        ("def add(a, b): return 5", [ADD, {"call": "add", "arguments": [1, 1], "expected": 2}], 0.5),
        ("import os\nos._exit(0)", [ADD, ASSERT], 0.0),
        ("import sys\nsys.exit(0)", [ADD, ASSERT], 0.0),
        ("def add(a, b): raise SystemExit(0)", [ADD, ASSERT], 0.0),
        ("def add(a, b): return object()", [ADD], 0.0),
        ("class Any:\n  def __eq__(self, other): return True\ndef add(a, b): return Any()", [ADD], 0.0),
        ("def add(a, b): return float('nan')", [ADD], 0.0),
        ("this is no Python", [ADD, ASSERT], 0.0),
        ("", [ADD], 0.0),
    ],
)  # fmt: skip
def test_answers_are_scored_by_what_they_do(reward: CodeReward, code: str, tests: list[Any], score: float) -> None:
    assert reward.score(completion(block(code), tests=tests)) == score


@needs_sandbox
def test_the_last_block_is_the_answer_and_no_block_is_no_answer(reward: CodeReward) -> None:
    text = block("print(1)") + block("print(5)") + "```text\nnot this\n```"
    assert reward.score(completion(text, tests=[ECHO])) == 1.0
    assert reward.score(completion("print(5)", tests=[ECHO])) == 0.0
    assert CodeReward(CodeConfig(answer_in="all")).score(completion("print(5)", tests=[ECHO])) == 1.0


@needs_sandbox
def test_score_all_wants_every_test_and_max_tests_takes_the_first() -> None:
    tests = [ECHO, {"input": "", "output": "6"}]
    assert CodeReward(CodeConfig(score="all")).score(completion(block("print(5)"), tests=tests)) == 0.0
    assert CodeReward(CodeConfig(score="all", max_tests=1)).score(completion(block("print(5)"), tests=tests)) == 1.0


@needs_sandbox
def test_what_is_expected_never_enters_the_sandbox(reward: CodeReward) -> None:
    peek = """
import gc, re
def find(argument):
    found = re.search("98765" + "4[0-9]+", repr(gc.get_objects()))
    return int(found[0]) if found else None
"""
    seen = {"call": "find", "arguments": [987654321], "expected": 987654321}
    unseen = {"call": "find", "arguments": [0], "expected": 987654321}
    assert reward.score(completion(block(peek), tests=[seen])) == 1.0
    assert reward.score(completion(block(peek), tests=[unseen])) == 0.0


@needs_sandbox
def test_large_input_and_output_pass_through_the_pipes(reward: CodeReward) -> None:
    text = "x" * 200_000
    assert reward.score(completion(block("print(input())"), tests=[{"input": text, "output": text}])) == 1.0
    assert reward.score(completion(block("print(5)"), tests=[{"input": text * 5, "output": "5"}])) == 1.0


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ("assert True", "give a list of at least one test"),
        ([], "give a list of at least one test"),
        ([{"input": "x"}], "test 0 of the prompt is"),
        ([ECHO, {"call": "f", "arguments": 3, "expected": 1}], "test 1 of the prompt is"),
        ([{"input": 3, "output": "x"}], "test 0 of the prompt is"),
    ],
    ids=str,
)
def test_tests_of_another_form_are_refused(tests: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_tests(tests)


@needs_sandbox
def test_a_prompt_without_tests_names_its_fields(reward: CodeReward) -> None:
    with pytest.raises(InputError, match=r"reward\.tests_field='tests' is no field of the prompt; its fields: answer"):
        reward.score(completion("x", answer=1))


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (1, 1, True), (1, 1.0, True), (1.0000001, 1, True), (1.1, 1, False), (True, 1, False), (True, True, True),
        ([1, [2.0]], (1, (2,)), True), ([1], [1, 2], False), ({"a": 1}, {"a": 1}, True), ({"1": 2}, {1: 2}, True),
        ({"a": 1}, {"b": 1}, False), ("a", "a", True), ("1", 1, False), (None, None, True), (float("nan"), 1.0, False),
        (float("inf"), float("inf"), True), (10**400, 1.0, False), (10**400, 10**400, True),
    ],
    ids=str,
)  # fmt: skip
def test_values_are_compared_as_json(value: Any, expected: Any, equal: bool) -> None:
    assert same(value, expected, 1e-6) is equal


def test_without_the_sandbox_program_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(sandbox.SandboxUnavailable, match=r"bwrap is not on this machine; install bubblewrap"):
        CodeReward(CodeConfig())
    assert "install bubblewrap" in str(sandbox.check())


def test_a_sandbox_that_does_not_isolate_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A program of the same name that only starts what it is given."""
    fake = tmp_path_factory.mktemp("bin") / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(fake))
    reason = sandbox.check()
    assert reason is not None
    assert "cannot isolate programs here" in reason
    assert "self-test: " in reason


@needs_sandbox
def test_a_sandbox_that_leaves_out_one_protection_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real program, with its arguments ``--seccomp N`` left out."""
    fake = tmp_path / "bwrap"
    fake.write_text(
        "#!/bin/sh\nleft=$#\nwhile [ $left -gt 0 ]; do\n  each=$1; shift; left=$((left - 1))\n"
        '  if [ "$each" = --seccomp ]; then shift; left=$((left - 1)); else set -- "$@" "$each"; fi\n'
        f'done\nexec {shutil.which("bwrap")} "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(fake))
    reason = sandbox.check()
    assert reason is not None
    assert "self-test: system calls are not filtered" in reason


@needs_sandbox
def test_a_sandbox_that_stops_working_is_an_error_and_no_score(
    reward: CodeReward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward._sandbox, "_program", shutil.which("false"))
    with pytest.raises(RuntimeError, match="the sandbox could not be set up"):
        reward.score(completion(block("print(5)"), tests=[ECHO]))


def test_an_interpreter_that_does_not_run_is_named() -> None:
    with pytest.raises(InputError, match=r"reward\.python='/nowhere/python' does not run"):
        sandbox.find_interpreter("/nowhere/python")


def test_an_interpreter_that_would_let_the_home_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.CompletedProcess([], 0, stdout="/home/me/bin/python\n/home/me\n/home/me\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: answer)
    monkeypatch.setenv("HOME", "/home/me")
    with pytest.raises(InputError, match=r"lies in '/home/me', which holds the home or working directory"):
        sandbox.find_interpreter("/home/me/bin/python")
