"""Scores completions in worker processes. A reward that fails costs its own value, never the run."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from time import monotonic
from types import TracebackType
from typing import Literal, Self

from sparrow_core import registry
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Completion
from sparrow_trainers.rewards.config import RewardsConfig, RewardTerm
from sparrow_trainers.rewards.nursery import Setup
from sparrow_trainers.rewards.processes import NurseryHandle, NurseryLost, WorkerHandle, ending
from sparrow_trainers.rewards.worker import Job, Ready, RewardSpec, Scored

logger = logging.getLogger(__name__)

ErrorKind = Literal["raised", "timeout", "not_finite", "died"]
_START_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RewardOutcome:
    """The reward of one completion."""

    value: float
    """Weighted sum over the terms; finite."""
    error: ErrorKind | None = None
    """Of the first term that failed; it counts with ``rewards.value_on_error``."""
    message: str = ""
    """What happened, for every term that failed."""
    parts: dict[str, float] = field(default_factory=dict)
    """Each term's value before its weight."""


@dataclass(frozen=True, slots=True)
class _Result:
    value: float
    error: ErrorKind | None = None
    message: str = ""
    notes: tuple[str, ...] = ()


class RewardPool:
    """Worker processes for ``config.terms``, as a context manager. One thread at a time may call it.

    Raises InputError when a reward cannot be imported or built, with the reward's own reason.
    """

    def __init__(self, config: RewardsConfig) -> None:
        self.config = config
        self.failures: Counter[tuple[str, ErrorKind]] = Counter()
        """How often which term failed in which way, over the pool's life."""
        self._setup = Setup(tuple(_spec(term, n) for n, term in enumerate(config.terms)), config.memory_mb)
        self._nursery = NurseryHandle(self._setup, config.start_limit_s)
        self._workers: list[WorkerHandle] = []
        self._closed = False
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def score(self, completions: Sequence[Completion]) -> list[RewardOutcome]:
        """One outcome per completion, in order. What fails is logged with its prompt id and counted."""
        if self._closed:
            raise RuntimeError("the reward pool is closed")
        num_terms = len(self.config.terms)
        jobs = [Job(term, _plain(completion)) for completion in completions for term in range(num_terms)]
        results = self._run(jobs)
        return [self._outcome(c, results[n * num_terms : (n + 1) * num_terms]) for n, c in enumerate(completions)]

    def close(self) -> None:
        """End all processes. May be called again."""
        self._closed = True
        for worker in self._workers:
            worker.pipe.close()
        self._workers.clear()
        self._nursery.close()

    def _run(self, jobs: Sequence[Job]) -> list[_Result]:
        results: dict[int, _Result] = {}
        todo = deque(range(len(jobs)))
        try:
            while len(results) < len(jobs):
                if len(self._workers) < self.config.workers:
                    self._fill()
                for worker in [each for each in self._workers if each.job is None]:
                    self._give(worker, todo, jobs)
                results.update(self._collect())
        except BaseException:
            for worker in [each for each in self._workers if each.job is not None]:
                self._end(worker)
            raise
        return [results[n] for n in range(len(jobs))]

    def _give(self, worker: WorkerHandle, todo: deque[int], jobs: Sequence[Job]) -> None:
        if not todo:
            return
        number = todo.popleft()
        try:
            worker.give(number, jobs[number], self.config.time_limit_s)
        except ConnectionError:
            # It ended between two jobs: the next worker takes this one.
            todo.appendleft(number)
            self._end(worker)

    def _collect(self) -> dict[int, _Result]:
        """Waits until a job ends or the nearest time limit; the results that there are then."""
        busy = {worker.pipe: worker for worker in self._workers if worker.job is not None}
        if not busy:
            return {}
        nearest = min(worker.deadline for worker in busy.values())
        ready = wait(list(busy), timeout=max(0.0, nearest - monotonic()))
        found: dict[int, _Result] = {}
        for pipe, worker in busy.items():
            number = worker.job
            assert number is not None
            if pipe in ready:
                found[number] = self._receive(worker)
            elif monotonic() >= worker.deadline:
                found[number] = _Result(0.0, "timeout", f"ran past rewards.time_limit_s={self.config.time_limit_s:g}")
                self._end(worker)
        return found

    def _receive(self, worker: WorkerHandle) -> _Result:
        try:
            scored: Scored = worker.pipe.recv()
        except (EOFError, OSError):
            return _Result(0.0, "died", ending(self._end(worker, wait_s=1.0)))
        worker.job = None
        if scored.failure:
            return _Result(0.0, "raised", scored.failure, scored.notes)
        if not math.isfinite(scored.value):
            return _Result(0.0, "not_finite", f"returned {scored.value}", scored.notes)
        return _Result(scored.value, notes=scored.notes)

    def _end(self, worker: WorkerHandle, *, wait_s: float = 0.0) -> int | None:
        self._workers.remove(worker)
        try:
            return self._nursery.kill(worker, wait_s=wait_s)
        except NurseryLost:
            # Its workers end with it; _fill starts anew.
            return None

    def _fill(self) -> None:
        """Start the missing workers. Raises InputError when a reward cannot be built, RuntimeError when none starts."""
        last = ""
        for _ in range(_START_ATTEMPTS):
            fresh: list[WorkerHandle] = []
            try:
                while len(self._workers) + len(fresh) < self.config.workers:
                    fresh.append(self._nursery.start())
            except NurseryLost as error:
                last = str(error)
                self._restart_nursery()
                continue
            self._workers += fresh
            deadline = monotonic() + self.config.start_limit_s
            for worker in fresh:
                last = self._await_ready(worker, deadline) or last
            if len(self._workers) == self.config.workers:
                return
        raise RuntimeError(f"reward workers do not start: {last}")

    def _await_ready(self, worker: WorkerHandle, deadline: float) -> str:
        """Empty when the worker is ready; else the worker is ended and this is why."""
        try:
            if not worker.pipe.poll(max(0.0, deadline - monotonic())):
                self._end(worker)
                return f"building the rewards takes longer than rewards.start_limit_s={self.config.start_limit_s:g}"
            ready: Ready = worker.pipe.recv()
        except (EOFError, OSError):
            return f"while it built the rewards {ending(self._end(worker, wait_s=1.0))}"
        if ready.failure:
            self._end(worker)
            raise InputError(ready.failure)
        return ""

    def _restart_nursery(self) -> None:
        logger.warning("the reward nursery ended; starting another")
        self._nursery.close()
        # The workers ended with it. Those that had a job stay, so that their pipes report its end.
        for worker in [each for each in self._workers if each.job is None]:
            worker.pipe.close()
            self._workers.remove(worker)
        self._nursery = NurseryHandle(self._setup, self.config.start_limit_s)

    def _outcome(self, completion: Completion, results: Sequence[_Result]) -> RewardOutcome:
        total, parts, messages = 0.0, {}, []
        first: ErrorKind | None = None
        for term, result in zip(self.config.terms, results, strict=True):
            parts[term.label] = self.config.value_on_error if result.error else result.value
            total += term.weight * parts[term.label]
            for note in result.notes:
                logger.warning("reward %s on prompt %s: %s", term.label, completion.prompt_id, note)
            if result.error:
                first = first or result.error
                self.failures[term.label, result.error] += 1
                messages.append(f"{term.label}: {result.error}: {result.message}")
                logger.warning("reward on prompt %s failed: %s", completion.prompt_id, messages[-1])
        return RewardOutcome(total, first, "; ".join(messages), parts)


def _spec(term: RewardTerm, index: int) -> RewardSpec:
    """Raises InputError for a class that another process cannot import."""
    reward_class: type = registry.load("sparrow.rewards", term.reward.type)
    module, qualname = reward_class.__module__, reward_class.__qualname__
    if module == "__main__" or "<locals>" in qualname:
        raise InputError(
            f"rewards.terms[{index}] is {qualname} of {module}, which worker processes cannot import; "
            "move the class to the top level of a module"
        )
    return RewardSpec(term.label, module, qualname, term.reward.model_dump())


def _plain(completion: Completion) -> Completion:
    """With fields that can be pickled whatever mapping holds them."""
    return replace(completion, fields=dict(completion.fields))
