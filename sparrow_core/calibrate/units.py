"""The work of a calibration, cut into units that are each finished, stored and never repeated.

A unit is one prompt under one selector: every budget at once, as samples that share the prompt's pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparrow_core import registry
from sparrow_core.calibrate.config import CalibrateConfig
from sparrow_core.calibrate.grid import BudgetGrid, default_budgets
from sparrow_core.config import resolved
from sparrow_core.contracts import PluginConfig
from sparrow_core.engine import Request, RolloutEngine
from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.errors import InputError
from sparrow_core.measure.measure import rollout_traces, trace_meta
from sparrow_core.measure.progress import Progress
from sparrow_core.measure.score import score_traces
from sparrow_core.model import LanguageModel
from sparrow_core.trace import Trace, TraceSet

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    selector: PluginConfig
    prompt: int
    directory: Path

    @property
    def is_done(self) -> bool:
        return (self.directory / "traces.json").exists()


class UnitRunner:
    """Runs units; what a unit gives depends on the configuration and its prompt alone, never on other units."""

    def __init__(
        self, config: CalibrateConfig, model: LanguageModel, prompts: Sequence[TokenIds], output: Path
    ) -> None:
        self.config = config
        self.model = model
        self.prompts = prompts
        self.output = output
        self.budgets = _budgets(config, model, prompts)
        self._grid = BudgetGrid(self.budgets, config.attention.layout)
        rollout = config.rollout.model_copy(
            update={"keep_hidden": config.mismatch.exact, "max_batch": max(config.rollout.max_batch, len(self.budgets))}
        )
        self._rollout = rollout
        self._engines: dict[str, RolloutEngine] = {}

    def units(self) -> list[Unit]:
        return [
            Unit(selector, prompt, self.output / "units" / f"{index}-{selector.type}" / f"{prompt:05d}")
            for prompt in range(len(self.prompts))
            for index, selector in enumerate(self.config.calibrate.selectors)
        ]

    def run(self, unit: Unit, progress: Progress) -> TraceSet:
        """The unit's scored traces, one per budget; stored when new, read back when done before."""
        if unit.is_done:
            return TraceSet.load(unit.directory)
        requests = list(self._requests(unit, progress))
        traces = rollout_traces(self._engine(unit.selector), requests, self._grid, progress)
        scored = [dataclasses.replace(trace, hidden=None) for trace in score_traces(self.model, traces)]
        meta = dataclasses.replace(
            trace_meta(self.config, self.model), selector=unit.selector.type, policy="budget_grid"
        )
        result = TraceSet(scored, meta)
        result.save(unit.directory)
        return result

    def _requests(self, unit: Unit, progress: Progress) -> Iterator[Request]:
        prompt, forced = self._text(unit.prompt, progress)
        base = build_requests(self.model, [prompt], self._rollout)[0]
        for sample in range(len(self.budgets)):
            key = dataclasses.replace(base.key, prompt=unit.prompt, sample=sample)
            sampling = base.sampling if forced is None else dataclasses.replace(base.sampling, max_tokens=len(forced))
            yield Request(key, prompt, sampling, forced or ())

    def _text(self, index: int, progress: Progress) -> tuple[TokenIds, TokenIds | None]:
        """The prompt to prefill and the tokens to force after it (None: each budget draws its own)."""
        prompt, settings = self.prompts[index], self.config.calibrate
        if settings.mode == "on_policy":
            return prompt, None
        if settings.text_prefix is not None:
            end = settings.text_prefix + self.config.rollout.max_tokens
            forced = prompt[settings.text_prefix : end]
            if not forced:
                raise InputError(
                    f"prompt {index} has {len(prompt)} tokens, nothing after "
                    f"calibrate.text_prefix={settings.text_prefix}; lower it or give longer texts"
                )
            return prompt[: settings.text_prefix], forced
        return prompt, tuple(self._dense_text(index, progress).token_ids.tolist())

    def _dense_text(self, index: int, progress: Progress) -> Trace:
        """The dense rollout of a prompt, stored so that every selector scores the same text."""
        directory = self.output / "units" / "dense" / f"{index:05d}"
        if (directory / "traces.json").exists():
            return TraceSet.load(directory).traces[0]
        request = build_requests(self.model, [self.prompts[index]], self._rollout)[0]
        request = dataclasses.replace(request, key=dataclasses.replace(request.key, prompt=index))
        policy_class = registry.load("sparrow.policies", "dense")
        dense = build_policy(policy_class.Config(type="dense"), self.config.attention.layout)
        engine = self._engine(self.config.calibrate.selectors[0])
        traces = rollout_traces(engine, [request], dense, progress.named("dense text"))
        TraceSet(traces, trace_meta(self.config, self.model)).save(directory)
        return traces[0]

    def _engine(self, selector: PluginConfig) -> RolloutEngine:
        name = repr(resolved(selector))
        if name not in self._engines:
            attention = self.config.attention.model_copy(update={"selector": selector})
            self._engines[name] = build_engine(self.model, attention, self._rollout)
        return self._engines[name]


def _budgets(config: CalibrateConfig, model: LanguageModel, prompts: Sequence[TokenIds]) -> tuple[int, ...]:
    if config.calibrate.budgets is not None:
        return config.calibrate.budgets
    layout = config.attention.layout
    longest = max(len(p) for p in prompts)
    if config.calibrate.text_prefix is None:
        longest += config.rollout.max_tokens
    pages = -(-min(longest, model.context_length) // layout.page_size)
    return default_budgets(pages, layout.sink_pages + layout.recent_pages + 1, config.calibrate.num_budgets)
