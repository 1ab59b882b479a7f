"""What goes into a sandbox and what comes out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Ending = Literal["exit", "signal", "time", "memory", "output"]
"""exit: by itself, see the code. signal: killed from inside or by a resource limit. The others: that limit was hit."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    time_s: float = 4.0
    """Wall clock of one run."""
    memory_mb: int = 512
    """Address space of each process, and resident private memory of all together."""
    processes: int = 16
    """Threads count too."""
    output_kb: int = 256
    """Standard output and error together, and the test's result."""
    disk_mb: int = 16
    """Size of the tmpfs, the only place to write to."""

    def rlimits(self) -> dict[str, int]:
        return {
            "RLIMIT_AS": self.memory_mb * 2**20,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.disk_mb * 2**20,
            "RLIMIT_NOFILE": 128,
            "RLIMIT_CPU": int(self.time_s) + 1,
        }


@dataclass(frozen=True, slots=True)
class Test:
    """One test of an answer. stdin: the answer is a program. call: ``function(*arguments)``. assert: ``code``."""

    kind: Literal["stdin", "call", "assert"]
    stdin: str = ""
    function: str = ""
    arguments: tuple[Any, ...] = ()
    code: str = ""
    token: str = ""
    """What the program says when the code has run to its end; an answer that exits early cannot say it."""


@dataclass(frozen=True, slots=True)
class SandboxJob:
    answer: str
    test: Test

    def encode(self, limits: SandboxLimits, uid: int | None) -> bytes:
        test = {
            "kind": self.test.kind,
            "function": self.test.function,
            "arguments": self.test.arguments,
            "code": self.test.code,
            "token": self.test.token,
        }
        job = {"answer": self.answer, "test": test, "limits": limits.rlimits(), "uid": uid}
        return json.dumps(job).encode()


@dataclass(frozen=True, slots=True)
class SandboxRun:
    ending: Ending
    code: int
    """Exit code, 0 when the ending is another."""
    stdout: str
    stderr: str
    result: str
    """Of a call, as JSON; the token of an assert."""
    started: bool
    """The limits held and the answer began to run."""
