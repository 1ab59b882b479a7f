"""Where the traces of a distillation step come from: new sparse rollouts, or recorded ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from sparrow_core.config import AttentionConfig, RolloutConfig
from sparrow_core.contracts import SparsityPolicy
from sparrow_core.engine import RolloutEngine
from sparrow_core.engine.build import build_requests
from sparrow_core.engine.stats import EngineStats
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.replay.recordings import trace_directories
from sparrow_core.trace import Trace, TraceMeta, TraceSet
from sparrow_trainers.data.order import PromptOrder
from sparrow_trainers.data.prompt_set import PromptSet
from sparrow_trainers.titan.ranks import Ranks

OnStep = Callable[[EngineStats], None]


class TraceSource(ABC):
    """Numbered items, each of which gives one or several traces."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def order(self) -> PromptOrder:
        """A fresh order over the items, at its start."""

    @abstractmethod
    def traces(
        self, indices: Sequence[int], policy: SparsityPolicy, *, step: int, version: int, on_step: OnStep | None = None
    ) -> list[Trace]:
        """This rank's share of the traces of ``indices``, by key."""


class PromptRollouts(TraceSource):
    """Samples prompts with the merged weights; the draws depend on (seed, step, place in the step, sample) alone."""

    def __init__(self, engine: RolloutEngine, rollout: RolloutConfig, prompts: PromptSet, ranks: Ranks) -> None:
        self._engine = engine
        self._rollout = rollout
        self._prompts = prompts
        self._ranks = ranks

    def __len__(self) -> int:
        return len(self._prompts)

    def order(self) -> PromptOrder:
        return self._prompts.order()

    def traces(
        self, indices: Sequence[int], policy: SparsityPolicy, *, step: int, version: int, on_step: OnStep | None = None
    ) -> list[Trace]:
        """Raises InputError when a prompt does not fit the context."""
        ids = [self._prompts[index].token_ids for index in indices]
        requests = build_requests(self._engine.model, ids, self._rollout, step=step)
        mine = [request for request in requests if request.key.prompt % self._ranks.world == self._ranks.rank]
        drawn = self._engine.generate(mine, policy, policy_version=version, on_step=on_step)
        return sorted(drawn, key=lambda trace: trace.key)


class RecordedTraces(TraceSource):
    """Traces on disk, in the order of their directories.

    Raises InputError when there are none, or they are of another model, of other pages, or longer than the context.
    """

    def __init__(
        self, directory: str | Path, model: LanguageModel, attention: AttentionConfig, ranks: Ranks,
        *, shuffle: bool, seed: int, recorded_budgets: bool,
    ) -> None:  # fmt: skip
        self._ranks = ranks
        self._shuffle, self._seed = shuffle, seed
        self._traces: list[Trace] = []
        for path in trace_directories(Path(directory)):
            stored = TraceSet.load(path)
            _check_meta(stored.meta, path, model, attention, recorded_budgets=recorded_budgets)
            for trace in stored.traces:
                _check_trace(trace, path, model)
            self._traces += [trace for trace in stored.traces if len(trace.token_ids)]
        if not self._traces:
            raise InputError(f"{str(directory)!r} holds no drawn token; record traces with sparrow rollout")

    def __len__(self) -> int:
        return len(self._traces)

    def order(self) -> PromptOrder:
        return PromptOrder(len(self), self._seed, shuffle=self._shuffle)

    def traces(
        self, indices: Sequence[int], policy: SparsityPolicy, *, step: int, version: int, on_step: OnStep | None = None
    ) -> list[Trace]:
        return [self._traces[index] for index in indices[self._ranks.rank :: self._ranks.world]]


def _check_meta(
    meta: TraceMeta, path: Path, model: LanguageModel, attention: AttentionConfig, *, recorded_budgets: bool
) -> None:
    if meta.model != model.name:
        raise InputError(f"the traces in {str(path)!r} are of {meta.model} but the model is {model.name}; give its own")
    if recorded_budgets and meta.page_size != attention.page_size:
        raise InputError(
            f"the traces in {str(path)!r} recorded budgets in pages of {meta.page_size} tokens; set "
            f"attention.page_size={meta.page_size}, or traces.budgets=policy"
        )


def _check_trace(trace: Trace, path: Path, model: LanguageModel) -> None:
    longest = len(trace.prompt_ids) + len(trace.token_ids)
    if longest > model.context_length:
        raise InputError(
            f"the trace of {trace.key} in {str(path)!r} has {longest} tokens, more than {model.name}'s context of "
            f"{model.context_length}; leave it out"
        )
