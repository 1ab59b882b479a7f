"""The process that worker processes are forked from.

A trainer has threads and a GPU context, so it cannot be forked; a fresh interpreter for every replaced worker would
take seconds. The nursery is a fresh interpreter of one thread that has imported the rewards and forks workers in
milliseconds. It ends, and ends its workers, when its control pipe closes or its parent is gone.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from time import monotonic, sleep

from sparrow_core.train_contracts import Reward
from sparrow_trainers.rewards.worker import Ready, RewardSpec, enter_worker_process, serve


@dataclass(frozen=True, slots=True)
class Setup:
    specs: tuple[RewardSpec, ...]
    memory_mb: int | None


@dataclass(frozen=True, slots=True)
class Start:
    """Fork a worker; its pipe's file descriptor follows. Answered by its pid."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker and its process group. Answered by its wait status, None where it is not known yet."""

    pid: int
    wait_s: float = 0.0
    """How long to wait for the worker to end by itself first."""


class Nursery:
    def __init__(self, control: Connection, setup: Setup) -> None:
        self.control = control
        self.setup = setup
        self.alive: set[int] = set()
        self.ended: dict[int, int] = {}

    def run(self) -> None:
        parent = os.getppid()
        try:
            while os.getppid() == parent:
                self._reap()
                if not self.control.poll(0.5):
                    continue
                request = self.control.recv()
                answer = self._start() if isinstance(request, Start) else self._kill(request)
                self.control.send(answer)
        except (EOFError, ConnectionError):
            pass
        finally:
            for pid in self.alive:
                self._kill_group(pid)

    def _start(self) -> int:
        handle = recv_handle(self.control)
        pid = os.fork()
        if pid == 0:
            self._become_worker(handle)
        os.close(handle)
        self.alive.add(pid)
        return pid

    def _become_worker(self, handle: int) -> None:
        status = 1
        try:
            enter_worker_process()
            self.control.close()
            serve(Connection(handle), self.setup.specs, self.setup.memory_mb)
            status = 0
        except BaseException:  # noqa: BLE001 - a forked worker must never return into the nursery's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _kill(self, request: Kill) -> int | None:
        deadline = monotonic() + request.wait_s
        while request.pid in self.alive and monotonic() < deadline:
            self._reap()
            sleep(0.005)
        status = self.ended.pop(request.pid, None)
        self._kill_group(request.pid)
        return status

    def _kill_group(self, pid: int) -> None:
        # An unreaped child keeps its pid; a group keeps its number while it has members.
        for kill in (os.killpg, os.kill) if pid in self.alive else (os.killpg,):
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self.alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self.alive.discard(pid)
            self.ended[pid] = status


def preload(reward_class: type[Reward]) -> None:
    """Import the modules that the class names in ``preload``, once for all workers.

    A missing one is for the class's constructor to report.
    """
    modules: tuple[str, ...] = getattr(reward_class, "preload", ())
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def main(control_fd: int) -> None:
    """Entry of the nursery's interpreter: read the setup, import the rewards, serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = Connection(control_fd)
    setup: Setup = control.recv()
    for index, spec in enumerate(setup.specs):
        try:
            preload(spec.reward_class())
        except Exception as error:  # noqa: BLE001 - whatever an import raises is the pool's to report
            control.send(Ready(f"rewards.terms[{index}] ({spec.label}): {type(error).__name__}: {error}"))
            return
    control.send(Ready())
    Nursery(control, setup).run()
