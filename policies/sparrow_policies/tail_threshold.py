"""Closed loop: hold the tail of the acceptance at tau in every length bin, with the fewest pages that do.

Each bin keeps a model of its tail against its budget (``_controller``). After every rollout a bin whose tail is
confidently below tau is raised at once, one whose lower confidence bound exceeds tau + margin is lowered to the
smallest budget likely to meet tau, and any other is left alone. Budgets never fall with length, so bins without data
lie between their neighbours' (``_monotone``). Statistic and threshold: Sparrow, arXiv 2606.08446; the loop is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.mismatch import AcceptanceSketch, MismatchStream
from sparrow_core.mismatch.stream import Kind
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.schedule_file import check_layout
from sparrow_policies._controller import BinModel, Rule, next_pages
from sparrow_policies._monotone import share_by_length
from sparrow_policies._tail import StreamShape, bin_sketch, observed_pages, read_tail
from sparrow_policies.schedule import preset


class TailThresholdConfig(PluginConfig):
    type: str = "tail_threshold"
    tau: float = Field(0.86, description="least tail; training was seen to be stable from 0.85 to 0.90")
    quantile: float = Field(0.05, gt=0, lt=1, description="which quantile of the acceptance the tail is")
    acceptance: Kind = Field(
        "lower", description="bound of the acceptance that must meet tau; exact needs hidden states"
    )
    initial: int | tuple[int, ...] | str = Field(256, description="first pages, per bin or for all, or a preset's name")
    min_pages: int | None = Field(None, ge=1, description="smallest budget; sink + recent + 1 when unset")
    max_pages: int = Field(2048, ge=1, description="largest budget")
    page_step: int = Field(4, ge=1, description="budgets are min_pages plus multiples of this")
    bin_tokens: int = Field(2000, ge=1)
    num_bins: int = Field(20, ge=1)
    margin: float = Field(
        0.01, ge=0, lt=0.5, description="a budget is lowered when its tail surely exceeds tau + margin"
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="of the intervals that decide")
    min_tokens: int = Field(400, ge=1, description="tokens a bin gathers before it is judged")
    half_life_tokens: float = Field(
        4000.0, gt=0, description="evidence counts half after so many newer tokens of its bin"
    )
    max_raise: float = Field(4.0, gt=0, description="largest raise in one observation, in doublings")
    max_lower: float = Field(2.0, gt=0, description="largest cut in one observation, in doublings")

    @field_validator("tau")
    @classmethod
    def tau_is_a_tail(cls, tau: float) -> float:
        if not 0 < tau < 1:
            raise InputError("must lie between 0 and 1; training was seen to be stable from 0.85 to 0.90")
        return tau


@dataclass(slots=True)
class _BinState:
    pages: int
    model: BinModel = field(default_factory=BinModel)
    waiting: AcceptanceSketch = field(default_factory=AcceptanceSketch)
    """Tokens seen under ``waiting_pages`` since the last judgement, while they are fewer than ``min_tokens``."""
    waiting_pages: float = 0.0


class TailThresholdPolicy(SparsityPolicy):
    """The smallest budgets whose tail is at least tau, found and followed from the mismatch alone.

    Raises InputError when budgets are out of range, or ``observe`` is given a stream with other bins or quantile.
    """

    Config: ClassVar[type[PluginConfig]] = TailThresholdConfig

    def __init__(self, config: PluginConfig, layout: SparseLayout) -> None:
        super().__init__(config, layout)
        assert isinstance(config, TailThresholdConfig)
        self.settings = config
        self._shape = StreamShape(config.bin_tokens, config.num_bins, config.quantile)
        self._rule = Rule(
            config.tau, config.margin, config.confidence, config.half_life_tokens, config.max_raise, config.max_lower
        )
        self._allowed = _allowed_pages(config, layout)
        self._bins = [_BinState(pages) for pages in self._shared(_initial_pages(config, layout))]

    def schedule(self) -> BudgetSchedule:
        return BudgetSchedule(
            tuple(state.pages for state in self._bins),
            self.settings.bin_tokens,
            self.layout.page_size,
            self.layout.sink_pages,
            self.layout.recent_pages,
        )

    def observe(self, mismatch: MismatchStream) -> None:
        self._shape.check(mismatch, self.settings.type)
        kind = self.settings.acceptance
        sketches = [bin_sketch(mismatch, index, kind) for index in range(self.settings.num_bins)]
        wanted = [
            self._judge(index, sketch, mismatch) if sketch.count else self._bins[index].pages
            for index, sketch in enumerate(sketches)
        ]
        for state, pages in zip(self._bins, self._shared(wanted), strict=True):
            state.pages = pages

    @property
    def unreachable_bins(self) -> tuple[int, ...]:
        """Bins whose tail is confidently below tau at the largest budget they can have."""
        return tuple(
            index
            for index, state in enumerate(self._bins)
            if state.model.evidence
            and state.pages >= self._allowed[index][-1]
            and state.model.tail_interval(state.pages, self._rule)[1] < self.settings.tau
        )

    @property
    def unmeasured_bins(self) -> tuple[int, ...]:
        """Bins that have not gathered ``min_tokens`` tokens yet; their budgets come from their neighbours."""
        return tuple(index for index, state in enumerate(self._bins) if not state.model.evidence)

    def state_dict(self) -> dict[str, Any]:
        return {
            "bins": [
                {
                    "pages": state.pages,
                    "evidence": state.model.state(),
                    "waiting": state.waiting.state_dict(),
                    "waiting_pages": state.waiting_pages,
                }
                for state in self._bins
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows = state.get("bins")
        if not isinstance(rows, list) or len(rows) != self.settings.num_bins:
            raise InputError(
                f"policy state must hold {self.settings.num_bins} bins (policy.num_bins), not "
                f"{len(rows) if isinstance(rows, list) else rows!r}; restore it with the settings it was saved with"
            )
        self._bins = [
            _BinState(
                int(row["pages"]),
                BinModel.from_state(row["evidence"]),
                AcceptanceSketch.from_state_dict(row["waiting"]),
                float(row["waiting_pages"]),
            )
            for row in rows
        ]

    def _judge(self, index: int, sketch: AcceptanceSketch, mismatch: MismatchStream) -> int:
        """The budget one bin wants after tokens of this observation."""
        state, settings = self._bins[index], self.settings
        pages = observed_pages(mismatch, index, state.pages, self.layout.page_size)
        if state.waiting_pages == pages:
            sketch = sketch + state.waiting
        state.waiting, state.waiting_pages = sketch, pages
        if sketch.count < settings.min_tokens:
            return state.pages
        state.waiting, state.waiting_pages = AcceptanceSketch(), 0.0
        reading = read_tail(sketch, settings.quantile, settings.confidence)
        state.model = state.model.updated(reading, pages, self._rule)
        present = min(state.pages, int(self._allowed[index][-1]))
        latest = reading if pages >= present else None
        return next_pages(state.model, latest, present, self._allowed[index], self._rule)

    def _shared(self, wanted: list[int]) -> tuple[int, ...]:
        measured = [bool(state.model.evidence) for state in getattr(self, "_bins", [])] or [False] * len(wanted)
        return share_by_length(wanted, measured, [int(allowed[-1]) for allowed in self._allowed])


def _allowed_pages(config: TailThresholdConfig, layout: SparseLayout) -> list[NDArray[np.int64]]:
    """Ascending budgets each bin may use; the last is its largest: all pages of the bin's longest context."""
    least = layout.sink_pages + layout.recent_pages + 1
    smallest = least if config.min_pages is None else config.min_pages
    if smallest < least:
        raise InputError(
            f"policy.min_pages={smallest} is below sink + recent + 1 = {least}; give at least {least} pages"
        )
    if config.max_pages < smallest:
        raise InputError(f"policy.max_pages={config.max_pages} is below policy.min_pages={smallest}; give a larger one")
    caps = []
    for index in range(config.num_bins):
        full = -(-(index + 1) * config.bin_tokens // layout.page_size)
        is_open = index == config.num_bins - 1
        caps.append(config.max_pages if is_open else max(smallest, min(config.max_pages, full)))
    return [np.unique(np.append(np.arange(smallest, cap, config.page_step), cap)) for cap in caps]


def _initial_pages(config: TailThresholdConfig, layout: SparseLayout) -> list[int]:
    """First budget per bin, moved into range."""
    smallest = int(_allowed_pages(config, layout)[0][0])
    if isinstance(config.initial, str):
        published = preset(config.initial)
        check_layout(published, layout, f"policy.initial={config.initial!r}")
        if published.bin_tokens != config.bin_tokens:
            raise InputError(
                f"policy.initial={config.initial!r} has bins of {published.bin_tokens} tokens, but "
                f"policy.bin_tokens={config.bin_tokens}; set that to {published.bin_tokens} or give page counts"
            )
        pages = [published.pages[min(index, published.num_bins - 1)] for index in range(config.num_bins)]
    elif isinstance(config.initial, int):
        pages = [config.initial] * config.num_bins
    else:
        pages = list(config.initial)
    if len(pages) != config.num_bins:
        raise InputError(
            f"policy.initial gives {len(pages)} page counts for policy.num_bins={config.num_bins}; give one per bin"
        )
    return [max(smallest, min(count, config.max_pages)) for count in pages]
