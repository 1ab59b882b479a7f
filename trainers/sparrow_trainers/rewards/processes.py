"""Handles of the nursery and its workers, as the pool holds them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from time import monotonic

from sparrow_core.errors import InputError
from sparrow_trainers.rewards.nursery import Kill, Setup, Start
from sparrow_trainers.rewards.worker import Job, Ready

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from sparrow_trainers.rewards.nursery import main; main(int(sys.argv[1]))"
)
_ANSWER_LIMIT_S = 30.0
"""The nursery answers in milliseconds; past this it is taken for lost."""


class NurseryLost(RuntimeError):
    """The nursery ended or does not answer."""


def _pipe() -> tuple[Connection, Connection]:
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), Connection(theirs.detach())


class WorkerHandle:
    """One worker process and what it is working on."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self.pid = pid
        self.pipe = pipe
        self.job: int | None = None
        self.deadline = 0.0

    def give(self, number: int, job: Job, time_limit_s: float) -> None:
        self.pipe.send(job)
        self.job, self.deadline = number, monotonic() + time_limit_s


class NurseryHandle:
    """Starts the nursery's interpreter. Raises InputError when a reward cannot be imported."""

    def __init__(self, setup: Setup, start_limit_s: float) -> None:
        self._control, theirs = _pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
            start_new_session=True,
            env={"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ},
        )
        theirs.close()
        try:
            self._control.send(setup)
            ready = self._answer(start_limit_s)
        except NurseryLost as error:
            self.close()
            raise NurseryLost(
                f"{error}; rewards.start_limit_s={start_limit_s:g} is the time it has to start"
            ) from error
        assert isinstance(ready, Ready)
        if ready.failure:
            self.close()
            raise InputError(ready.failure)

    def start(self) -> WorkerHandle:
        """A new worker; it sends Ready once its rewards are built. Raises NurseryLost."""
        ours, theirs = _pipe()
        try:
            with contextlib.closing(theirs):
                self._control.send(Start())
                send_handle(self._control, theirs.fileno(), self._process.pid)
            pid = self._answer(_ANSWER_LIMIT_S)
        except (OSError, NurseryLost) as error:
            ours.close()
            raise NurseryLost(f"the reward nursery is gone: {error}") from error
        assert isinstance(pid, int)
        return WorkerHandle(pid, ours)

    def kill(self, worker: WorkerHandle, *, wait_s: float = 0.0) -> int | None:
        """End ``worker`` and all that it started; its wait status where it had ended by itself within ``wait_s``."""
        worker.pipe.close()
        try:
            self._control.send(Kill(worker.pid, wait_s))
            status = self._answer(_ANSWER_LIMIT_S)
        except OSError as error:
            raise NurseryLost(f"the reward nursery is gone: {error}") from error
        assert status is None or isinstance(status, int)
        return status

    def close(self) -> None:
        """End the nursery and every worker. May be called again."""
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self, limit_s: float) -> object:
        try:
            if not self._control.poll(limit_s):
                raise NurseryLost(f"the reward nursery did not answer within {limit_s:g} s")
            answer: object = self._control.recv()
        except (EOFError, ConnectionError) as error:
            raise NurseryLost("the reward nursery ended; what it printed is above") from error
        return answer


def ending(status: int | None) -> str:
    """A wait status in words."""
    if status is None:
        return "its process ended"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        reason = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"its process was killed by {signal.Signals(number).name}{reason}"
    return f"its process exited with code {os.WEXITSTATUS(status)}"
