"""Python answers run against tests, each test in a sandbox of its own."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, ClassVar, Literal

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Completion, Reward
from sparrow_trainers.rewards.answers import last_code_block, prompt_field
from sparrow_trainers.rewards.sandbox import Sandbox, SandboxJob, SandboxLimits, SandboxRun, Test

logger = logging.getLogger(__name__)

_LEAST_S = 0.05
"""A test is not begun with less time left."""
_LIMIT_ERRORS = {
    "MemoryError": "memory",
    "BlockingIOError: [Errno 11]": "process",
    "RuntimeError: can't start new thread": "process",
    "OSError: [Errno 27]": "disk",
    "OSError: [Errno 28]": "disk",
}
"""How Python ends when the kernel refuses it memory, processes, file size and disk space."""


class CodeConfig(PluginConfig):
    type: str = "code"
    tests_field: str = Field("tests", min_length=1, description="the prompt's field with the list of tests")
    answer_in: Literal["code_block", "all"] = Field(
        "code_block", description="the last fenced block, or the whole text"
    )
    score: Literal["all", "share"] = Field("all", description="1 if all tests pass, or the share that passes")
    max_tests: int = Field(16, ge=1, description="the first tests are run, the rest is ignored")
    test_limit_s: float = Field(4.0, gt=0, description="for one test; past it the test fails")
    total_limit_s: float = Field(8.0, gt=0, description="for all tests; those past it fail")
    memory_mb: int = Field(512, ge=64, description="of an answer, all its processes together")
    processes: int = Field(16, ge=1, description="of an answer, threads among them")
    output_kb: int = Field(256, ge=1, description="that an answer may print")
    disk_mb: int = Field(16, ge=1, description="that an answer may write to /tmp, which it loses")
    float_tolerance: float = Field(1e-6, ge=0, description="relative, between floats that a call returns")
    python: str | None = Field(None, min_length=1, description="the interpreter; null takes the one sparrow runs on")


@dataclass(frozen=True, slots=True)
class Expected:
    """A test and what it must come to."""

    test: Test
    output: str = ""
    value: Any = None


class CodeReward(Reward):
    """The share of tests that the completion's code passes, or whether it passes all.

    A test is one of {"input": stdin, "output": stdout}, {"call": function, "arguments": [...], "expected": value} and
    {"assert": code}. What is expected of the first two never enters the sandbox. Raises SandboxUnavailable when
    answers cannot be isolated on this machine, and in ``score`` InputError for tests of another form and RuntimeError
    when a sandbox cannot be set up.
    """

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = CodeConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, CodeConfig)
        self._settings = config
        limits = SandboxLimits(
            config.test_limit_s, config.memory_mb, config.processes, config.output_kb, config.disk_mb
        )
        self._sandbox = Sandbox(limits, config.python)

    def score(self, completion: Completion) -> float:
        settings = self._settings
        tests = read_tests(prompt_field(completion, settings.tests_field, "reward.tests_field"))[: settings.max_tests]
        answer = completion.text if settings.answer_in == "all" else last_code_block(completion.text)
        if answer is None:
            return 0.0
        deadline = monotonic() + settings.total_limit_s
        passed = 0
        for expected in tests:
            left = deadline - monotonic()
            if left < _LEAST_S:
                logger.warning("the answer's tests took longer than reward.total_limit_s=%g", settings.total_limit_s)
                break
            if self._passes(answer, expected, min(left, settings.test_limit_s)):
                passed += 1
            elif settings.score == "all":
                return 0.0
        return float(passed == len(tests)) if settings.score == "all" else passed / len(tests)

    def _passes(self, answer: str, expected: Expected, time_s: float) -> bool:
        run = self._sandbox.run(SandboxJob(answer, expected.test), time_s)
        limit = _limit_hit(run)
        if limit is not None:
            logger.warning("the answer came to an end at its %s limit", limit)
        return run.ending == "exit" and run.code == 0 and self._agrees(expected, run)

    def _agrees(self, expected: Expected, run: SandboxRun) -> bool:
        match expected.test.kind:
            case "stdin":
                return _lines(run.stdout) == _lines(expected.output)
            case "assert":
                return run.result == expected.test.token
            case "call":
                try:
                    value = json.loads(run.result)
                except (ValueError, RecursionError):
                    return False
                return same(value, expected.value, self._settings.float_tolerance)


def _limit_hit(run: SandboxRun) -> str | None:
    """The limit that ended the answer, as far as can be told; for the log only."""
    if run.ending in ("time", "memory", "output"):
        return run.ending
    if run.ending == "signal":
        return "CPU time or memory (it died of a signal)"
    last = run.stderr.rstrip().rpartition("\n")[2]
    return next((limit for start, limit in _LIMIT_ERRORS.items() if run.code and last.startswith(start)), None)


def read_tests(value: object) -> list[Expected]:
    """The prompt's tests. Raises InputError for another form."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InputError(f"the prompt's tests are {value!r:.80}; give a list of at least one test")
    return [_read_test(index, test) for index, test in enumerate(value)]


def _read_test(index: int, test: object) -> Expected:
    match test:
        case {"input": str(stdin), "output": str(stdout)}:
            return Expected(Test("stdin", stdin=stdin), output=stdout)
        case {"call": str(function), "arguments": list(arguments) | tuple(arguments), "expected": value}:
            return Expected(Test("call", function=function, arguments=tuple(arguments)), value=value)
        case {"assert": str(code)}:
            return Expected(Test("assert", code=code, token=secrets.token_hex(16)))
    raise InputError(
        f"test {index} of the prompt is {test!r:.120}; "
        "give {input, output}, {call, arguments, expected} or {assert}, with text and lists where they belong"
    )


def _lines(text: str) -> list[str]:
    """Without space at the ends of lines and blank lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _close(value: float, expected: float, tolerance: float) -> bool:
    try:
        return math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an integer past the range of floats is close to none of them
        return False


def same(value: object, expected: object, tolerance: float) -> bool:
    """Equality of JSON values; floats within ``tolerance``, tuples like lists, and true is not 1."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        if isinstance(value, int) and isinstance(expected, int):
            return value == expected
        return value == expected or _close(value, expected, tolerance)
    if isinstance(value, list) and isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(map(lambda a, b: same(a, b, tolerance), value, expected))
    if isinstance(value, dict) and isinstance(expected, Mapping):
        names = {str(key): each for key, each in expected.items()}
        return value.keys() == names.keys() and all(same(each, names[key], tolerance) for key, each in value.items())
    return value == expected
