"""A ladder of schedules for a rollout whose adapter learns to close the gap to the dense policy (DistillSparse).

The first rung is safe without the adapter, each further one is cheaper. After every rollout the policy

* steps back at once when any bin's tail is confidently below tau, to the nearest rung expected to meet it;
* steps to the next rung when, ``patience`` rollouts in a row, every measured bin's lower confidence bound,
  carried over to that rung's budget, meets tau. The waiting doubles each time a rung had to be left.

Carrying a tail from rung k to k + 1 multiplies 1 - tail by what the step costs the model without the adapter: the
ratio of the reference streams' losses at both rungs where both were observed, else (pages_k / pages_k+1)^0.7, the
published power law (``_controller``). Source of the method: Sparrow, arXiv 2606.08446, where a run switches from a
schedule for 0.80 once the adapter brings it to 0.86; the ladder is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field, field_validator

from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream
from sparrow_core.mismatch.stream import Kind
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.schedule_file import check_layout
from sparrow_policies._tail import StreamShape, TailReading, bin_budget, bin_sketch, drawn_under, read_tail
from sparrow_policies.schedule import preset

_PAGES_EXPONENT = 0.7
_POOL_TOKENS = 6000
"""Readings of the present rung are pooled over about this many tokens per bin."""
_MOST_DOUBLINGS = 4

_Readings = dict[int, TailReading]


class DistillAwareConfig(PluginConfig):
    type: str = "distill_aware"
    ladder: tuple[str | tuple[int, ...], ...] = Field(
        min_length=2, description="schedules from the safest to the cheapest: preset names, or pages per bin"
    )
    start: int = Field(0, ge=0, description="rung to begin with")
    tau: float = Field(0.86, description="least tail; training was seen to be stable from 0.85 to 0.90")
    quantile: float = Field(0.05, gt=0, lt=1, description="which quantile of the acceptance the tail is")
    acceptance: Kind = Field(
        "lower", description="bound of the acceptance that must meet tau; exact needs hidden states"
    )
    bin_tokens: int = Field(2000, ge=1)
    num_bins: int = Field(20, ge=1)
    confidence: float = Field(0.95, gt=0, lt=1, description="of the intervals that decide")
    min_tokens: int = Field(400, ge=1, description="fewer tokens of a bin in one rollout are ignored")
    patience: int = Field(2, ge=1, description="rollouts in a row that must allow a cheaper rung")

    @field_validator("tau")
    @classmethod
    def tau_is_a_tail(cls, tau: float) -> float:
        if not 0 < tau < 1:
            raise InputError("must lie between 0 and 1; training was seen to be stable from 0.85 to 0.90")
        return tau


@dataclass(slots=True)
class _State:
    rung: int
    streak: int
    failures: list[int]
    """How often each rung had to be left."""
    adapter: _Readings = field(default_factory=dict)
    """Readings with the adapter at the present rung, by bin."""
    reference: list[_Readings] = field(default_factory=list)
    """Readings without the adapter, by rung and bin."""


class DistillAwarePolicy(SparsityPolicy):
    """The cheapest rung of a ladder that the adapter's tail allows.

    ``observe`` takes the stream of the rollout with the adapter, ``observe_reference`` that of the same tokens, or of
    another rollout, without it. Raises InputError when a rung is not cheaper than the one before, does not fit the
    layout or the bins, or a stream has other bins or quantile.
    """

    Config: ClassVar[type[PluginConfig]] = DistillAwareConfig

    def __init__(self, config: PluginConfig, layout: SparseLayout) -> None:
        super().__init__(config, layout)
        assert isinstance(config, DistillAwareConfig)
        self.settings = config
        self._shape = StreamShape(config.bin_tokens, config.num_bins, config.quantile)
        self._ladder = _ladder(config, layout)
        if config.start >= len(self._ladder):
            raise InputError(f"policy.start={config.start} must be a rung of the ladder, 0 to {len(self._ladder) - 1}")
        rungs = len(self._ladder)
        self._state = _State(config.start, 0, [0] * rungs, reference=[{} for _ in range(rungs)])

    @property
    def rung(self) -> int:
        """Index in the ladder of the present schedule."""
        return self._state.rung

    @property
    def adapter_gain(self) -> tuple[float | None, ...]:
        """Per bin, tail with the adapter minus tail without, at the present rung; None where either is not known."""
        with_it, without = self._state.adapter, self._state.reference[self._state.rung]
        bins = range(self.settings.num_bins)
        return tuple(with_it[b].tail - without[b].tail if b in with_it and b in without else None for b in bins)

    def schedule(self) -> BudgetSchedule:
        return self._ladder[self._state.rung]

    def observe(self, mismatch: MismatchStream) -> None:
        """Take in the mismatch with the adapter, and move along the ladder if it says so.

        Bins drawn under another rung's budget (a stale rollout) are left out.
        """
        state, fresh = self._state, self._read(mismatch, self._state.rung)
        if not fresh:
            return
        _pool(state.adapter, fresh)
        tau = self.settings.tau
        if any(min(reading.high, state.adapter[index].high) < tau for index, reading in fresh.items()):
            self._step_back(fresh)
        elif self._allows_next():
            state.streak += 1
            if state.streak >= self.settings.patience * 2 ** min(state.failures[state.rung + 1], _MOST_DOUBLINGS):
                self._move(state.rung + 1)
        else:
            state.streak = 0

    def observe_reference(self, mismatch: MismatchStream, rung: int | None = None) -> None:
        """Take in the mismatch without the adapter, under the schedule of ``rung`` (the present one when None)."""
        rung = self._state.rung if rung is None else rung
        if not 0 <= rung < len(self._ladder):
            raise InputError(f"rung={rung} must be one of the ladder's, 0 to {len(self._ladder) - 1}")
        _pool(self._state.reference[rung], self._read(mismatch, rung))

    def predicted_lower_bounds(self) -> dict[int, float]:
        """Per measured bin, the adapter's lower confidence bound carried over to the next rung; none on the last."""
        rung = self._state.rung
        if rung + 1 == len(self._ladder):
            return {}
        bins = self._state.adapter.items()
        return {index: 1 - (1 - reading.low) * self._step_ratio(rung, index) for index, reading in bins}

    def state_dict(self) -> dict[str, Any]:
        state = self._state
        return {
            "rung": state.rung,
            "streak": state.streak,
            "failures": list(state.failures),
            "adapter": _rows(state.adapter),
            "reference": [_rows(readings) for readings in state.reference],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        failures, reference = state.get("failures"), state.get("reference")
        if not isinstance(failures, list) or not isinstance(reference, list) or len(failures) != len(self._ladder):
            raise InputError(
                f"policy state does not fit a ladder of {len(self._ladder)} rungs; restore it with the ladder it was "
                "saved with"
            )
        self._state = _State(
            int(state["rung"]),
            int(state["streak"]),
            [int(count) for count in failures],
            _readings(state["adapter"]),
            [_readings(rows) for rows in reference],
        )

    def _allows_next(self) -> bool:
        bounds = self.predicted_lower_bounds().values()
        return bool(bounds) and min(bounds) >= self.settings.tau

    def _step_ratio(self, rung: int, index: int) -> float:
        """Factor on 1 - tail from ``rung`` to the next, without the adapter."""
        here, there = (self._state.reference[r].get(index) for r in (rung, rung + 1))
        if here is not None and there is not None and here.tail < 1:
            return max((1 - there.tail) / (1 - here.tail), 1.0)
        full = -(-(index + 1) * self.settings.bin_tokens // self.layout.page_size)
        present, cheaper = (min(self._ladder[r].pages[index], full) for r in (rung, rung + 1))
        return float((present / cheaper) ** _PAGES_EXPONENT)

    def _step_back(self, fresh: _Readings) -> None:
        """To the nearest safer rung where what was just seen is expected to meet tau."""
        rung = self._state.rung
        self._state.failures[rung] += 1
        losses = {index: 1 - reading.tail for index, reading in fresh.items()}
        while rung > 0 and max(losses.values()) > 1 - self.settings.tau:
            rung -= 1
            losses = {index: loss / self._step_ratio(rung, index) for index, loss in losses.items()}
        self._move(max(min(rung, self._state.rung - 1), 0))

    def _move(self, rung: int) -> None:
        self._state.rung, self._state.streak, self._state.adapter = rung, 0, {}

    def _read(self, mismatch: MismatchStream, rung: int) -> _Readings:
        """Readings of the bins with enough tokens, drawn under the rung's budgets."""
        settings = self.settings
        self._shape.check(mismatch, settings.type)
        readings = {}
        for index in range(settings.num_bins):
            sketch = bin_sketch(mismatch, index, settings.acceptance)
            scheduled = self._ladder[rung].pages[index]
            if sketch.count < settings.min_tokens:
                continue
            if drawn_under(mismatch, index, scheduled, self.layout.page_size) or self._is_nearest(
                mismatch, index, rung
            ):
                readings[index] = read_tail(sketch, settings.quantile, settings.confidence)
        return readings

    def _is_nearest(self, mismatch: MismatchStream, index: int, rung: int) -> bool:
        """Whether a bin's mean pages lie above the rung's budget, but nearer to it than to the next dearer budget.

        The first token of a response is drawn in the prefill, from all pages, which lifts the mean a little.
        """
        size, stats = self.layout.page_size, mismatch.bin(index)
        assert stats.pages_mean is not None
        budget = bin_budget(mismatch, index, self._ladder[rung].pages[index], size)
        dearer = [bin_budget(mismatch, index, each.pages[index], size) for each in self._ladder[:rung]]
        full = -(-(stats.hi or stats.lo + self.settings.bin_tokens) // size)
        above = min((pages for pages in (*dearer, full) if pages > budget), default=budget)
        return budget <= stats.pages_mean < (budget + above) / 2


def _ladder(config: DistillAwareConfig, layout: SparseLayout) -> tuple[BudgetSchedule, ...]:
    rungs = [_rung(config, layout, index) for index in range(len(config.ladder))]
    for index in range(1, len(rungs)):
        safer, cheaper = rungs[index - 1].pages, rungs[index].pages
        dearer = [b for b, (before, after) in enumerate(zip(safer, cheaper, strict=True)) if after > before]
        if dearer or safer == cheaper:
            where = f"attends to more pages in bin {dearer[0]}" if dearer else "is the same schedule"
            raise InputError(
                f"policy.ladder[{index}] {where} compared with ladder[{index - 1}]; order it from the safest "
                "schedule to the cheapest, each cheaper than the one before"
            )
    return tuple(rungs)


def _rung(config: DistillAwareConfig, layout: SparseLayout, index: int) -> BudgetSchedule:
    source = config.ladder[index]
    if isinstance(source, str):
        schedule = preset(source)
        check_layout(schedule, layout, f"policy.ladder[{index}]={source!r}")
    else:
        schedule = BudgetSchedule(source, config.bin_tokens, layout.page_size, layout.sink_pages, layout.recent_pages)
    if (schedule.num_bins, schedule.bin_tokens) != (config.num_bins, config.bin_tokens):
        raise InputError(
            f"policy.ladder[{index}] has {schedule.num_bins} bins of {schedule.bin_tokens} tokens, but "
            f"policy.num_bins={config.num_bins} and policy.bin_tokens={config.bin_tokens}; use the same bins"
        )
    return schedule


def _pool(known: _Readings, fresh: _Readings) -> None:
    """Add ``fresh`` to ``known``; a reading that contradicts what was known replaces it."""
    for index, reading in fresh.items():
        old = known.get(index)
        known[index] = reading if old is None or reading.contradicts(old) else old.pooled(reading, _POOL_TOKENS)


def _rows(readings: _Readings) -> list[list[Any]]:
    return [[index, r.tokens, r.tail, r.low, r.high] for index, r in sorted(readings.items())]


def _readings(rows: list[list[Any]]) -> _Readings:
    return {int(index): TailReading(int(tokens), *map(float, tail)) for index, tokens, *tail in rows}
