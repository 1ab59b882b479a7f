"""Policies run on recorded traces: what budgets they would have chosen, and what that would have meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparrow_core import registry
from sparrow_core.closed_loop import observe
from sparrow_core.contracts import CostModel, PluginConfig, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.mismatch import BinStats, MismatchStream
from sparrow_core.mismatch.stream import Kind
from sparrow_core.replay.config import ReplayConfig
from sparrow_core.replay.predict import Bins, Draw, Outside, Predictor
from sparrow_core.replay.recordings import Recordings
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule

_DEFAULTS = {"bin_tokens": 2000, "num_bins": 20, "quantile": 0.05, "tau": 0.86}
"""For traces whose meta does not say; those of ``MismatchConfig``."""

_COST_POINTS = 64
"""Context lengths at which a cost model is asked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A schedule and the mismatch it meets."""

    step: int
    schedule: BudgetSchedule
    stream: MismatchStream
    kept_fraction: float
    """Attended over context tokens, over the recorded lengths."""
    cost: float
    """Mean per token, in the replay's ``cost_unit``."""
    outside: tuple[Outside, ...]

    def bins(self) -> list[BinStats]:
        return [stats for stats in self.stream.bins() if stats.tokens]

    def tails(self, kind: Kind) -> dict[int, float]:
        """Tail by bin index, of the bins that hold tokens."""
        tails = {index: self.stream.tail(index, kind) for index in range(self.stream.num_bins)}
        return {index: tail for index, tail in tails.items() if tail is not None}


@dataclass(frozen=True, slots=True)
class PolicyReplay:
    """One policy's way through its observations."""

    name: str
    config: PluginConfig
    tau: float
    observations: tuple[Outcome, ...]
    final: Outcome
    """The schedule after the last observation, judged on all recorded tokens."""

    @property
    def settled_after(self) -> int | None:
        """Observations after which no budget changed any more; None when the last one still changed some."""
        schedules = [*(o.schedule for o in self.observations), self.final.schedule]
        if len(schedules) > 1 and schedules[-1] != schedules[-2]:
            return None
        return next(i for i in range(len(schedules)) if all(s == schedules[-1] for s in schedules[i:]))


@dataclass(frozen=True, slots=True)
class Replay:
    recordings: Recordings
    bins: Bins
    acceptance: Kind
    cost_unit: str
    dense_cost: float
    """Mean cost per token of attending to every page."""
    runs: tuple[PolicyReplay, ...]


OnObservation = Callable[[PolicyReplay], None]


class Replayer:
    """Replays policies on one set of recordings.

    Raises InputError when a policy does not fit the layout, decides by sequence, or asks for a budget that the traces
    cannot tell of.
    """

    def __init__(self, config: ReplayConfig, recordings: Recordings) -> None:
        self.config = config
        self.recordings = recordings
        recorded = _recorded_settings(recordings)
        self.bins = Bins(
            config.bin_tokens or int(recorded["bin_tokens"]),
            config.num_bins or int(recorded["num_bins"]),
            config.quantile or float(recorded["quantile"]),
        )
        self._tau = config.tau or float(recorded["tau"])
        self.acceptance = self._acceptance()
        self._predictor = Predictor(recordings, self.bins)
        self._cost = _cost_model(config, recordings)
        self.policies = _named(_expanded(config, self.bins, self.acceptance))
        for name, policy in self.policies:
            self._build(name, policy)

    def run(self, on_observation: OnObservation | None = None) -> Replay:
        """Every policy in turn; ``on_observation`` gets a policy's replay so far after each of its observations."""
        runs = tuple(self._run(name, policy, on_observation) for name, policy in self.policies)
        dense = BudgetSchedule((DENSE_PAGES,), page_size=self.recordings.meta.page_size, sink_pages=0, recent_pages=1)
        unit = "pages" if self._cost is None else self._cost.unit
        dense_cost = self._cost_per_token(dense)
        return Replay(self.recordings, self.bins, self.acceptance, unit, dense_cost, runs)

    def _run(self, name: str, config: PluginConfig, on_observation: OnObservation | None) -> PolicyReplay:
        policy = self._build(name, config)
        tau = float(getattr(config, "tau", self._tau))
        seen: list[Outcome] = []
        for step in range(self.config.observations):
            seen.append(self._outcome(name, policy.schedule(), step, self._draw(step)))
            if on_observation is not None:
                on_observation(PolicyReplay(name, config, tau, tuple(seen), seen[-1]))
            observe(policy, seen[-1].stream, name=name, where=f"observation {step}")
        final = self._outcome(name, policy.schedule(), len(seen), None)
        return PolicyReplay(name, config, tau, tuple(seen), final)

    def _outcome(self, name: str, schedule: BudgetSchedule, step: int, draw: Draw | None) -> Outcome:
        try:
            prediction = self._predictor.predict(schedule, draw)
        except InputError as error:
            raise InputError(f"policy {name}: {error}") from error
        context, kept = self._predictor.context, np.zeros(self.bins.num_bins)
        for index, stats in enumerate(prediction.stream.bins()):
            kept[index] = stats.kept_fraction or 0.0
        return Outcome(
            step,
            schedule,
            prediction.stream,
            float((kept * context).sum() / context.sum()),
            self._cost_per_token(schedule),
            prediction.outside,
        )

    def _cost_per_token(self, schedule: BudgetSchedule) -> float:
        """Over the recorded lengths: pages attended to, or the cost model's unit."""
        model, batch = self._cost, self.config.cost_batch
        lengths_T = torch.from_numpy(self._predictor.lengths(None if model is None else _COST_POINTS))
        budgets_T = schedule.pages_at(lengths_T)
        if model is None:
            num_pages_T = (lengths_T + self.recordings.meta.page_size - 1) // self.recordings.meta.page_size
            return float(torch.minimum(num_pages_T, budgets_T.long()).double().mean())
        steps = [
            model.step_cost(length.expand(batch).int(), budget.expand(batch).int())
            for length, budget in zip(lengths_T, budgets_T, strict=True)
        ]
        return sum(steps) / len(steps) / batch

    def _draw(self, step: int) -> Draw | None:
        count = self.config.tokens_per_bin
        return None if count is None else Draw(count, (self.config.seed, step))

    def _build(self, name: str, config: PluginConfig) -> SparsityPolicy:
        policy_class = registry.load("sparrow.policies", config.type)
        if policy_class.budgets is not SparsityPolicy.budgets:
            raise InputError(
                f"policy {name} decides by sequence (it defines budgets()); a replay follows schedules by length only"
            )
        policy = policy_class(config, self.recordings.layout)
        policy.schedule()
        return policy

    def _acceptance(self) -> Kind:
        if self.config.acceptance is None:
            wanted = self.recordings.meta.config.get("mismatch", {}).get("exact", False)
            return "exact" if wanted and self.recordings.has_exact else "lower"
        if self.config.acceptance == "exact" and not self.recordings.has_exact:
            raise InputError(
                f"acceptance='exact' but the traces in {self.recordings.source!r} hold bounds only; "
                "record them with mismatch.exact=true, or set acceptance=lower"
            )
        return self.config.acceptance


def _expanded(config: ReplayConfig, bins: Bins, acceptance: Kind) -> list[PluginConfig]:
    """The policies, once per tau where they have one, with the replay's bins where they were given none."""
    expanded = []
    for policy in config.policies:
        has_tau = "tau" in type(policy).model_fields
        for tau in config.taus if config.taus is not None and has_tau else [None]:
            given = {} if tau is None else {"tau": tau}
            expanded.append(_fitted(policy, given, bins, acceptance))
    return expanded


def _fitted(policy: PluginConfig, given: dict[str, Any], bins: Bins, acceptance: Kind) -> PluginConfig:
    settings = {
        "bin_tokens": bins.bin_tokens,
        "num_bins": bins.num_bins,
        "quantile": bins.quantile,
        "acceptance": acceptance,
    }
    fields = type(policy).model_fields
    fill = {k: v for k, v in settings.items() if k in fields and k not in policy.model_fields_set}
    return type(policy).model_validate({**policy.model_dump(exclude_unset=True), "type": policy.type, **fill, **given})


def _named(policies: Sequence[PluginConfig]) -> list[tuple[str, PluginConfig]]:
    """Each with a distinct name: its type and what tells it apart."""
    names = [_label(policy) for policy in policies]
    return [
        (f"{name} #{names[: i + 1].count(name)}" if names.count(name) > 1 else name, policy)
        for i, (name, policy) in enumerate(zip(names, policies, strict=True))
    ]


def _label(policy: PluginConfig) -> str:
    shown = [name for name in ("tau", "pages", "preset", "file") if getattr(policy, name, None) is not None]
    return " ".join([policy.type.rpartition(":")[2], *(f"{name}={getattr(policy, name)}" for name in shown)])


def _recorded_settings(recordings: Recordings) -> dict[str, Any]:
    recorded = recordings.meta.config.get("mismatch", {})
    return {name: recorded.get(name, default) for name, default in _DEFAULTS.items()}


def _cost_model(config: ReplayConfig, recordings: Recordings) -> CostModel | None:
    if config.cost is None:
        return None
    vectors = registry.load("sparrow.selectors", recordings.meta.selector).landmark_vectors
    return registry.load("sparrow.cost_models", config.cost.type)(config.cost, recordings.layout, vectors)
