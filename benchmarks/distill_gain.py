"""What an adapter for sparse rollouts wins: train it under a budget below tau, and measure the tail on held-out text.

    python benchmarks/distill_gain.py OUT --json OUT/result.json --minutes 6 attention.backend=triton

In parts, each stored under OUT and skipped when it is there, so that the same command goes on after an interruption:

* ``text``: every held-out prompt is continued densely; all measurements score these same tokens.
* ``rank-R``: ``sparrow distill`` on rollouts of the training prompts under ``--train-pages``. Without ``--steps`` the
  first rank's speed says how many steps fit into ``--minutes``; every rank takes as many.
* ``tails-without``, ``tails-rank-R``: the tail of every budget in every length bin, as ``sparrow calibrate`` takes it,
  with the rollout's weights merged with no adapter and with each; and the cheapest schedule that meets tau.
* ``rl-without``, ``rl-with``: a few steps of ``sparrow train`` without and with ``distill``, for their times.

KEY=VALUE is a setting of ``sparrow distill``; those of model, attention, rollout and adapter hold everywhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sparrow_core import registry
from sparrow_core.bench.environment import environment
from sparrow_core.calibrate.calibrate import Cell, cell_tokens, pooled_tails, search_schedules
from sparrow_core.calibrate.config import CalibrateConfig, CalibrateSection
from sparrow_core.calibrate.grid import BudgetGrid
from sparrow_core.config import load_as, resolved
from sparrow_core.contracts import PluginConfig
from sparrow_core.engine import Request
from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.errors import InputError
from sparrow_core.measure.measure import rollout_traces, trace_meta
from sparrow_core.measure.progress import Progress
from sparrow_core.measure.score import score_traces
from sparrow_core.model import LanguageModel, load_model, resolve_device
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.schedule_file import ScheduleFile, write_schedule
from sparrow_core.search import SearchResult, bin_costs
from sparrow_core.trace import Trace, TraceSet
from sparrow_core.train_log import StepRecord, read_records
from sparrow_policies.cost import AnalyticCost, ModelShape
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.data.prompt_set import load_prompts
from sparrow_trainers.distill.adapter_files import load_adapter
from sparrow_trainers.distill.merge import merged_model
from sparrow_trainers.distill.run import distill
from sparrow_trainers.distill.run_config import DistillRunConfig
from sparrow_trainers.rl.run import train

TRAINING = (2200, 3000, 3700, 5200, 6200, 7300, 9400, 10600, 11800, 13600, 14800, 16000)
"""Characters of the training prompts, taken twice, and of the held-out ones, those of docs/calibration.md."""
HELD_OUT = (*TRAINING, 2600, 5700, 9900, 10900)
_HELD_OUT_FROM = 260_000
"""Characters of the text that no training prompt takes from."""
_TRAIN_SHARE = 0.65
"""Of ``--minutes``: the adapters' training."""
_PROBE = 3
_SHARED = ("model.", "attention.", "rollout.", "mismatch.", "train.", "distill.adapter.", "distill.optimizer.")
_DISTILL_TIMES = ("step", "rollout", "teacher", "reference", "distill")
_RL_TIMES = ("step", "rollout", "recompute", "reward", "update", "distill")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="directory of the parts")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, required=True, help="the result")
    parser.add_argument("--ranks", type=_counts, default=(16, 64), help="of the adapters; default 16,64")
    parser.add_argument("--train-pages", type=_counts, default=(16, 24, 32, 40), help="per length bin, below tau")
    parser.add_argument("--budgets", type=_counts, default=(8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96))
    parser.add_argument("--minutes", type=float, default=6.0, help="for everything; the training is cut to fit")
    parser.add_argument("--steps", type=int, help="of each adapter, in place of --minutes")
    parser.add_argument("--rl-steps", type=int, default=4, help="of each run of sparrow train; 0 leaves them out")
    parser.add_argument("--rl", action="append", default=[], metavar="KEY=VALUE", help="setting of sparrow train alone")
    parser.add_argument("--train-prompts", type=Path, help="JSONL; default: stretches of Python's language reference")
    parser.add_argument("--held-out-prompts", type=Path, help="JSONL; default: further stretches")
    parser.add_argument("--min-tokens", type=int, default=200, help="fewest from which a bin's tail is stated")
    try:
        Gain(parser.parse_intermixed_args()).run()
    except InputError as error:
        parser.error(str(error))


class Gain:
    """The parts and where they are kept."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.output: Path = arguments.output
        self.output.mkdir(parents=True, exist_ok=True)
        train_prompts = arguments.train_prompts or self._stretches("train.jsonl", TRAINING * 2, 0)
        held_out = arguments.held_out_prompts or self._stretches("held_out.jsonl", HELD_OUT, _HELD_OUT_FROM)
        self.keys = {
            "model.source": "smollm2",
            "policy": "dense",
            "mismatch.bin_tokens": 1000,
            "mismatch.num_bins": len(arguments.train_pages),
            "rollout.max_tokens": 128,
            "rollout.samples_per_prompt": 4,
            "rollout.max_batch": 64,
            "train.prompts_per_step": 8,
            "data.source": f"{{type: jsonl, path: {train_prompts}}}",
            "evaluate.data.source": f"{{type: jsonl, path: {held_out}}}",
            "distill.reference_every": 10,
            "checkpoint.interval": 10,
        } | dict(each.split("=", 1) for each in arguments.overrides)
        self.config = config = self._distill_config(arguments.ranks[0], 1)
        self._model: LanguageModel | None = None
        schedule = self.output / "schedule.json"
        write_schedule(schedule, ScheduleFile(self._budgets(), self.model.name, config.attention.selector.type))
        self.keys["policy"] = f"{{type: schedule, file: {schedule}}}"
        self.config = self._distill_config(arguments.ranks[0], 1)
        self.calibration = CalibrateConfig(
            model=config.model,
            attention=config.attention,
            rollout=config.rollout.model_copy(update={"samples_per_prompt": 1}),
            mismatch=config.mismatch.model_copy(update={"exact": True}),
            calibrate=CalibrateSection(budgets=arguments.budgets, min_tokens=arguments.min_tokens),
        )

    @property
    def model(self) -> LanguageModel:
        """The dense policy."""
        if self._model is None:
            section = self.config.model
            dtype = getattr(torch, section.dtype)
            self._model = load_model(section.source, dtype=dtype, device=resolve_device(section.device))
        return self._model

    def run(self) -> None:
        arguments = self.arguments
        parts: dict[str, Any] = {"tails": {}, "training": {}, "rl": {}}
        self._traces_of_text()
        parts["tails"]["without"] = self._part("tails-without", lambda: self._tails(self.model))
        first = arguments.ranks[0]
        steps = arguments.steps or self._part("steps", lambda: self._steps_that_fit(first))
        for rank in arguments.ranks:
            parts["training"][str(rank)] = self._part(f"rank-{rank}", lambda rank=rank: self._train(rank, steps))
            parts["tails"][str(rank)] = self._part(f"tails-rank-{rank}", lambda rank=rank: self._adapted_tails(rank))
        for name in ("without", "with") if arguments.rl_steps else ():
            parts["rl"][name] = self._part(f"rl-{name}", lambda name=name: self._rl_times(name == "with"))
        self._write(parts)
        print(table(parts["tails"], self.config.mismatch.tau))

    def _part(self, name: str, make: Callable[[], Any]) -> Any:
        path = self.output / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text())
        started = time.perf_counter()
        print(f"{name} ...", file=sys.stderr, flush=True)
        value = make()
        path.with_suffix(".tmp").write_text(json.dumps(value))
        path.with_suffix(".tmp").replace(path)
        print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
        return value

    def _stretches(self, name: str, characters: Sequence[int], skip: int) -> Path:
        path = self.output / name
        if not path.exists():
            script = Path(__file__).with_name("long_prompts.py")
            sizes = ",".join(str(each) for each in characters)
            command = [sys.executable, str(script), str(path), "--characters", sizes, "--skip", str(skip)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return path

    def _distill_config(self, rank: int, steps: int) -> DistillRunConfig:
        keys = self.keys | {"distill.adapter.rank": rank, "distill.adapter.alpha": 2 * rank, "train.steps": steps}
        keys["output"] = self.output / f"rank-{rank}"
        return load_as(DistillRunConfig, None, [f"{key}={value}" for key, value in keys.items()])

    def _budgets(self) -> BudgetSchedule:
        layout = self.config.attention.layout
        shape = (self.config.mismatch.bin_tokens, layout.page_size, layout.sink_pages, layout.recent_pages)
        return BudgetSchedule(self.arguments.train_pages, *shape)

    def _steps_that_fit(self, rank: int) -> int:
        """Of every rank, by the speed of the first one's last trial step."""
        distill(self._distill_config(rank, _PROBE), None)
        seconds = self._records(f"rank-{rank}")[_PROBE - 1].metrics["time/step_s"]
        share = 60 * self.arguments.minutes * _TRAIN_SHARE / len(self.arguments.ranks)
        return max(_PROBE, int(share / seconds))

    def _train(self, rank: int, steps: int) -> dict[str, Any]:
        distill(self._distill_config(rank, steps), None)
        records = self._records(f"rank-{rank}")
        names = ("distill/forward_kl", "adapter/acceptance_mean", "reference/forward_kl", "reference/acceptance_mean")
        curves = {name: [record.metrics.get(name) for record in records] for name in names}
        tokens = int(records[-1].metrics["rollout/total_tokens"])
        return {"steps": len(records), "tokens": tokens, "curves": curves, "seconds": _times(records, _DISTILL_TIMES)}

    def _traces_of_text(self) -> list[Trace]:
        """The dense continuation of every held-out prompt."""
        directory = self.output / "text"
        if (directory / "traces.json").exists():
            return TraceSet.load(directory).traces
        assert self.config.evaluate.data is not None
        prompts = load_prompts(self.config.evaluate.data, self.model.tokenizer)
        ids = [prompts[index].token_ids for index in range(len(prompts))]
        config = self.calibration
        engine = build_engine(self.model, config.attention, config.rollout)
        dense = build_policy(registry.load("sparrow.policies", "dense").Config(type="dense"), config.attention.layout)
        traces = rollout_traces(engine, build_requests(self.model, ids, config.rollout), dense, Progress(None))
        TraceSet(traces, trace_meta(config, self.model)).save(directory)
        return traces

    def _adapted_tails(self, rank: int) -> dict[str, Any]:
        adapter = load_adapter(self.model, self.output / f"rank-{rank}" / "adapter")
        return self._tails(merged_model(self.model, adapter))

    def _tails(self, rollout_model: LanguageModel) -> dict[str, Any]:
        """Cells as in a calibration, of ``rollout_model`` against the dense policy, and the cheapest schedule."""
        config, budgets = self.calibration, self.arguments.budgets
        engine = build_engine(rollout_model, config.attention, config.rollout.model_copy(update={"keep_hidden": True}))
        requests = []
        for text in self._traces_of_text():
            prompt, forced = tuple(text.prompt_ids.tolist()), tuple(text.token_ids.tolist())
            base = build_requests(rollout_model, [prompt], config.rollout)[0]
            sampling = dataclasses.replace(base.sampling, max_tokens=len(forced))
            keys = [dataclasses.replace(text.key, sample=sample) for sample in range(len(budgets))]
            requests += [Request(key, prompt, sampling, forced) for key in keys]
        traces = rollout_traces(engine, requests, BudgetGrid(budgets, config.attention.layout), Progress(None))
        scored = score_traces(self.model, traces)
        cells = tuple(self._cell(pages, scored[sample :: len(budgets)]) for sample, pages in enumerate(budgets))
        search = search_schedules(config, budgets, cells).searches[config.attention.selector.type]
        return {"cells": [dataclasses.asdict(cell) for cell in cells], "schedule": self._schedule(search, cells)}

    def _cell(self, pages: int, traces: Sequence[Trace]) -> Cell:
        config = self.calibration
        tokens = cell_tokens(traces, config.attention.page_size, exact=config.mismatch.exact)
        return Cell(config.attention.selector.type, pages, tuple(pooled_tails(config, tokens)))

    def _schedule(self, search: SearchResult, cells: Sequence[Cell]) -> dict[str, Any]:
        """Pages per bin, with the share of the context that they keep and the analytic cost of a token there."""
        config = self.calibration
        by_pages = {cell.pages: cell for cell in cells}
        shape = ModelShape.from_hf_config(self.model.config)
        vectors = registry.load("sparrow.selectors", config.attention.selector.type).landmark_vectors
        settings: PluginConfig = AnalyticCost.Config(type="analytic", model=shape)
        cost = AnalyticCost(settings, config.attention.layout, vectors)
        width, bins = config.mismatch.bin_tokens, config.mismatch.num_bins
        batch = config.calibrate.cost_batch
        costs = bin_costs(cost, search.pages, bin_tokens=width, num_bins=bins, batch=batch)
        return {
            "pages": list(search.pages),
            "tails": [choice.tail for choice in search.choices],
            "below_tau": list(search.infeasible_bins),
            "unmeasured": list(search.unmeasured_bins),
            "kept": [by_pages[pages].bins[index].kept_fraction for index, pages in enumerate(search.pages)],
            "analytic_h200_us_per_token": [1e6 * float(costs[index, index]) / width for index in range(bins)],
        }

    def _rl_times(self, with_adapter: bool) -> dict[str, Any]:
        name = "rl-with" if with_adapter else "rl-without"
        keys = {key: value for key, value in self.keys.items() if key.startswith(_SHARED)}
        rank = self.arguments.ranks[0]
        keys |= {"distill.adapter.rank": rank, "distill.adapter.alpha": 2 * rank, "distill.reference_every": 0}
        if not with_adapter:
            keys = {key: value for key, value in keys.items() if not key.startswith("distill.")}
        keys.pop("model.dtype", None)
        keys |= {"data.source": self.keys["data.source"], "policy": self.keys["policy"], "train.steps": 0}
        # A constant reward: only times are read.
        keys |= {"rewards.terms": "[{reward: {type: function, path: 'operator:truth'}}]", "rewards.workers": 1}
        keys |= {"checkpoint.export": "false", "output": self.output / name}
        keys |= dict(each.split("=", 1) for each in self.arguments.rl) | {"train.steps": self.arguments.rl_steps}
        train(load_as(TrainConfig, None, [f"{key}={value}" for key, value in keys.items()]), None)
        records = self._records(name)
        seconds = _times(records, _RL_TIMES)
        result = {"steps": len(records), "seconds": seconds}
        if with_adapter:
            later = _later(records)
            share = statistics.median(each.metrics["time/distill_share"] for each in later)
            result |= {"share_of_step": share, "share_of_update": seconds["distill"] / seconds["update"]}
        return result

    def _records(self, name: str) -> list[StepRecord]:
        return read_records(self.output / name / "metrics.jsonl")

    def _write(self, parts: dict[str, Any]) -> None:
        arguments, config = self.arguments, self.config
        facts = environment(resolve_device(config.model.device))
        facts["command"] = " ".join(["python", "benchmarks/distill_gain.py", *sys.argv[1:]])
        settings = {"ranks": arguments.ranks, "train_pages": arguments.train_pages, "budgets": arguments.budgets}
        result = {"bench": "distill_gain", "environment": facts, **settings, "config": resolved(config), **parts}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")


def table(tails: dict[str, Any], tau: float) -> str:
    """Markdown: the tail of every bin and budget without / with each adapter, and the cheapest pages that meet tau."""
    names = list(tails)
    first = tails[names[0]]["cells"]
    spans = [f"{each['lo']}+" if each["hi"] is None else f"{each['lo']}-{each['hi'] - 1}" for each in first[0]["bins"]]
    lines = [f"tail without / {' / '.join(f'rank {name}' for name in names[1:])}", ""]
    lines += ["| pages | " + " | ".join(spans) + " |", "|---" * (len(spans) + 1) + "|"]
    for row, cell in enumerate(first):
        bins = range(len(spans))
        rows = [
            " / ".join(_number(tails[name]["cells"][row]["bins"][index]["tail"]) for name in names) for index in bins
        ]
        lines.append(f"| {cell['pages']} | " + " | ".join(rows) + " |")
    for label, key in ((f"pages for {tau:g}", "pages"), ("us per token", "analytic_h200_us_per_token")):
        rows = [" / ".join(f"{tails[name]['schedule'][key][b]:.4g}" for name in names) for b in range(len(spans))]
        lines.append(f"| {label} | " + " | ".join(rows) + " |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _later(records: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """Without the first step, which warms up, where there are others."""
    return records[1:] or records


def _times(records: Sequence[StepRecord], names: Sequence[str]) -> dict[str, float]:
    """Median seconds of a step's parts."""
    known = [name for name in names if f"time/{name}_s" in records[-1].metrics]
    return {name: statistics.median(r.metrics[f"time/{name}_s"] for r in _later(records)) for name in known}


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
