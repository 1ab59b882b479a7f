"""One decode step to time: a batch at chosen lengths over random keys and values, dense, sparse or without attention.

The step is the engine's own: budgets, forward, sampling, records. Its lengths are set again before every timed call,
so that they do not drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparrow_core import registry
from sparrow_core.bench.pages import num_pages, shuffled_table
from sparrow_core.bench.plan import Planner, check_length, free_bytes
from sparrow_core.bench.timing import Call, time_rounds
from sparrow_core.config import AttentionConfig, RolloutConfig
from sparrow_core.engine.build import build_engine
from sparrow_core.engine.device_sampling import SamplingMode
from sparrow_core.engine.device_step import DeviceStep, StepKey
from sparrow_core.engine.session import RolloutSession
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule

DENSE, SPARSE, WITHOUT = "dense", "sparse", "without_attention"
_NO_LIMIT = 1 << 40


class WithoutAttention(RolloutSession):
    """Attention replaced by a copy of the queries: nothing is stored, scored or read from the cache."""

    def attend(
        self, layer: int, q_BLNH: torch.Tensor, k_BLNH: torch.Tensor, v_BLNH: torch.Tensor, scale: float
    ) -> torch.Tensor:
        return q_BLNH.clone()


@dataclass(frozen=True, slots=True)
class Timing:
    """How often each step is timed."""

    rounds: int = 7
    repeats: int = 10
    """Steps per round."""


class StepBench:
    """Steps of one batch whose rows may have up to ``capacities`` tokens, under one schedule.

    ``names`` are the steps to time: ``DENSE``, ``SPARSE`` and ``WITHOUT``.
    Raises InputError when the model, the memory or the backend cannot serve them.
    """

    def __init__(
        self,
        model: LanguageModel,
        attention: AttentionConfig,
        rollout: RolloutConfig,
        *,
        capacities: Sequence[int],
        schedule: BudgetSchedule,
        names: Sequence[str] = (DENSE, SPARSE),
        seed: int = 0,
    ) -> None:
        self.model, self.batch, self.names = model, len(capacities), tuple(names)
        check_length(model, max(capacities))
        size, device = attention.page_size, model.device
        refuse_without_graphs(attention, device)
        marks = registry.load("sparrow.selectors", attention.selector.type).landmark_vectors
        planner = Planner(model, size, marks, rollout.prefill_chunk, rollout.topk_logprobs)
        planner.check_fits(self.batch, list(capacities), free_bytes(device))
        engine = build_engine(model, attention, rollout.model_copy(update={"max_batch": self.batch}))
        self.session = session = engine.session_for(num_pages(capacities, size))
        generator = torch.Generator(device=device).manual_seed(seed)
        fill_cache(session, generator)
        width = -(-max(capacities) // size)
        sessions = {"attention": session}
        if WITHOUT in names:
            sessions[WITHOUT] = WithoutAttention(session.backend, session.selector, session.cache, engine.layout)
        mode = SamplingMode(draws=True, truncates=False)
        most = min(max(schedule.pages), width)
        self.steps = {
            name: DeviceStep(model, used, engine.options, schedule, mode, width=width, max_budget=most, num_stops=0)
            for name, used in sessions.items()
        }
        table_BW = shuffled_table(capacities, width, size, generator)
        for step in self.steps.values():
            self._fill_state(step, table_BW, generator)
        self._lengths_B = torch.tensor(capacities, dtype=torch.int32, device=device)

    def time(self, lengths: Sequence[int], timing: Timing) -> dict[str, list[float]]:
        """Seconds per step, one mean per round, of each of ``names``, every row at its length."""
        self._lengths_B.copy_(torch.tensor(lengths, dtype=torch.int32))
        calls = {name: self.call(name) for name in self.names}
        return time_rounds(calls, self.model.device, rounds=timing.rounds, repeats=timing.repeats, reset=self.reset)

    def reset(self) -> None:
        for step in self.steps.values():
            step.state.lengths_B.copy_(self._lengths_B)

    def call(self, name: str) -> Call:
        step = self.steps[WITHOUT if name == WITHOUT else "attention"]
        key = StepKey(self.batch, sparse=name == SPARSE)

        def run() -> None:
            with torch.no_grad(), self.model.bind(step.session):
                step.run(key)

        return run

    def attended_pages(self, name: str) -> list[int]:
        """Pages that each row's last step of this kind attended to, as the step itself recorded them."""
        ring = self.steps[WITHOUT if name == WITHOUT else "attention"].ring
        last = (int(ring.index_1) - 1) % ring.outcome_R3B.shape[0]
        pages: list[int] = ring.outcome_R3B[last, 1].tolist()
        return pages

    def _fill_state(self, step: DeviceStep, table_BW: torch.Tensor, generator: torch.Generator) -> None:
        state, device = step.state, self.model.device
        state.table_BW.copy_(table_BW)
        state.tokens_B.random_(0, self.model.vocab_size, generator=generator)
        state.states_B.random_(generator=generator)
        state.limits_B.fill_(_NO_LIMIT)
        state.greedy_B.copy_(torch.zeros(self.batch, dtype=torch.bool, device=device))


def refuse_without_graphs(attention: AttentionConfig, device: torch.device) -> None:
    """Raises InputError when a step with this backend and selector cannot be captured in a CUDA graph."""
    if device.type != "cuda":
        return
    backend: Any = registry.load("sparrow.backends", attention.backend.type)
    selector: Any = registry.load("sparrow.selectors", attention.selector.type)
    if not backend.capabilities.graph_capture:
        raise InputError(
            f"attention.backend={attention.backend.type} cannot be captured in a CUDA graph, which is what is timed; "
            "use attention.backend=triton"
        )
    if not selector.graph_capture:
        raise InputError(
            f"attention.selector={attention.selector.type} cannot be captured in a CUDA graph, which is what is timed; "
            "use attention.selector=mean_landmark"
        )


def fill_cache(session: RolloutSession, generator: torch.Generator) -> None:
    """Random keys and values, and landmarks of the size that means of a page's keys have."""
    spread = session.cache.page_size**-0.5
    for layer in session.cache.layers:
        layer.k_PKSD.normal_(generator=generator)
        layer.v_PKSD.normal_(generator=generator)
        layer.landmarks_PKMD.normal_(std=spread, generator=generator)
