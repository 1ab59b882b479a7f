"""A reward worker: builds the rewards in a process of its own and scores what its pipe brings, until the pipe ends."""

from __future__ import annotations

import importlib
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from numbers import Real
from typing import Any

import numpy as np

from sparrow_core.train_contracts import Completion, Reward

MESSAGE_LIMIT = 2000
"""Characters of an error that are passed on."""
NOTES_LIMIT = 20
"""Logged warnings per completion that are passed on."""


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """How a worker builds one reward: the class by its path, and its configuration as plain data."""

    label: str
    module: str
    qualname: str
    config: dict[str, Any]

    def reward_class(self) -> type[Reward]:
        found: Any = importlib.import_module(self.module)
        for part in self.qualname.split("."):
            found = getattr(found, part)
        reward_class: type[Reward] = found
        return reward_class

    def build(self) -> Reward:
        reward_class = self.reward_class()
        return reward_class(reward_class.Config.model_validate(self.config))


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has built its rewards, or says why it could not."""

    failure: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    term: int
    """Which of the rewards."""
    completion: Completion


@dataclass(frozen=True, slots=True)
class Scored:
    value: float
    failure: str = ""
    """What the reward raised."""
    notes: tuple[str, ...] = ()
    """What was logged as a warning meanwhile, for the trainer's own log."""


def serve(pipe: Connection, specs: Sequence[RewardSpec], memory_mb: int | None) -> None:
    """Score the jobs of ``pipe`` until its other end is closed."""
    if memory_mb is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb * 2**20, hard))
    rewards: list[Reward] = []
    for index, spec in enumerate(specs):
        try:
            rewards.append(spec.build())
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises is the pool's to report
            pipe.send(Ready(_failure(f"rewards.terms[{index}] ({spec.label})", error)))
            return
    pipe.send(Ready())
    notes = _Notes()
    logging.getLogger().addHandler(notes)
    while True:
        try:
            job: Job = pipe.recv()
        except (EOFError, ConnectionError):
            return
        scored = _score(rewards[job.term], job.completion)
        pipe.send(replace(scored, notes=notes.take()))


class _Notes(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._texts) < NOTES_LIMIT:
            self._texts.append(record.getMessage()[:MESSAGE_LIMIT])

    def take(self) -> tuple[str, ...]:
        texts, self._texts = tuple(self._texts), []
        return texts


def _score(reward: Reward, completion: Completion) -> Scored:
    try:
        value: object = reward.score(completion)
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is the pool's to count and log
        return Scored(0.0, _failure("", error))
    if not isinstance(value, Real | np.bool_):
        return Scored(0.0, f"returned {value!r:.200}, which is not a number")
    return Scored(float(value))


def _failure(place: str, error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return (f"{place}: {text}" if place else text)[:MESSAGE_LIMIT]


def enter_worker_process() -> None:
    """Make the calling process a worker: a process group of its own, and an end together with its parent's.

    SIGINT is the trainer's to handle. Where the kernel has no parent-death signal, the end of the pipe ends the worker.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
