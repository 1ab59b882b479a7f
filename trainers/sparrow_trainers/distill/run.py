"""A distillation run from its configuration: check everything, set it up on this rank, train, write the adapter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from sparrow_core.config import save_config
from sparrow_core.config.load import CONFIG_FILE
from sparrow_core.engine.build import build_engine, build_policy
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel, inspect_model, load_model, resolve_device
from sparrow_core.schedule import DENSE_PAGES
from sparrow_core.schedule_file import check_policy_origin
from sparrow_core.train_log import StepRecord
from sparrow_trainers.data.config import DataConfig
from sparrow_trainers.data.prompt_set import load_prompts
from sparrow_trainers.distill.adapter import ADAPTER_BYTES, adapter_size
from sparrow_trainers.distill.adapter_files import replace_adapter
from sparrow_trainers.distill.adapter_training import AdapterTraining
from sparrow_trainers.distill.run_config import DistillRunConfig
from sparrow_trainers.distill.sources import PromptRollouts, RecordedTraces, TraceSource
from sparrow_trainers.distill.trainer import DistillTrainer
from sparrow_trainers.rl.run import check_output
from sparrow_trainers.run_log.trackers import require_trackers
from sparrow_trainers.titan.ranks import Ranks, check_world, running_ranks

_MAY_CHANGE = frozenset({"checkpoint", "evaluate", "log", "output", "parallel", "train"})
_FIXED_TRAIN = ("prompts_per_step",)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class DistillPlan:
    """What a run trains on what; bytes are of one rank, beside activations and KV pages."""

    model: str
    num_parameters: int
    adapter_parameters: int
    source: str
    pages: tuple[int, ...]
    weight_bytes: int
    """The policy, and copies of the weights that the adapter changes."""
    adapter_bytes: int
    """Weights, gradients and moments in float32."""

    def lines(self) -> Iterator[str]:
        pages = ["dense" if each == DENSE_PAGES else str(each) for each in self.pages]
        yield f"model     {self.model}, {self.num_parameters:,} parameters; adapter {self.adapter_parameters:,}"
        yield f"data      {self.source}"
        yield f"budget    {' '.join(pages if len(set(pages)) > 1 else pages[:1])} pages by length bin"
        yield (
            f"memory    {self.weight_bytes / 2**30:.2f} GiB weights with the merged copies, "
            f"{self.adapter_bytes / 2**30:.2f} GiB adapter, per rank beside activations and KV pages"
        )


def dry_run(config: DistillRunConfig) -> DistillPlan:
    """Check files, model, prompts or traces, adapter, schedule and ranks; nothing is written."""
    check_world(config.parallel, int(os.environ.get("WORLD_SIZE", "1")))
    check_output(config, may_change=_MAY_CHANGE, fixed_train=_FIXED_TRAIN)
    require_trackers(config.log.trackers)
    model = inspect_model(config.model.source, dtype=_DTYPES[config.model.dtype])
    check_policy_origin(config.policy, model.name, config.attention.selector.type)
    if config.traces is None:
        assert config.data is not None
        source = f"{len(load_prompts(config.data, model.tokenizer)):,} prompts"
    else:
        device = torch.device("cpu")
        alone = Ranks(rank=0, world=1, device=device, dims=None, parallelism=None)
        source = f"{len(_recorded(config, config.traces.path, model, alone)):,} traces"
    return _plan(config, model, source)


def distill(config: DistillRunConfig, console: Console | None) -> StepRecord | None:
    """Train to the end, from the latest checkpoint of ``config.output`` where there is one; the last step's record.

    None when the run was complete already. Raises InputError for anything in the configuration that cannot work,
    before anything is generated.
    """
    device = resolve_device(config.model.device)
    with running_ranks(config.parallel, device) as ranks:
        ranks.check_all(_problem(config, ranks))
        model = load_model(config.model.source, dtype=_DTYPES[config.model.dtype], device=ranks.device)
        check_policy_origin(config.policy, model.name, config.attention.selector.type)
        training = AdapterTraining(model, config.attention, config.distill, ranks.sum_all)
        source, held_out = _sources(config, training, ranks)
        if console is not None and ranks.is_main:
            kind = "prompts" if config.traces is None else "traces"
            for line in _plan(config, model, f"{len(source):,} {kind}").lines():
                console.print(line, markup=False)
        trainer = DistillTrainer(config, training, source, held_out, ranks, console)
        try:
            record = trainer.run()
            if ranks.is_main:
                replace_adapter(training.adapter, model, trainer.output)
        finally:
            trainer.close()
        return record


def _problem(config: DistillRunConfig, ranks: Ranks) -> str | None:
    """Claim the output directory on rank 0; what is wrong with it, as text for all ranks."""
    if not ranks.is_main:
        return None
    try:
        check_output(config, may_change=_MAY_CHANGE, fixed_train=_FIXED_TRAIN)
        if not (Path(config.output) / CONFIG_FILE).exists():
            save_config(config, config.output)
    except InputError as error:
        return str(error)
    return None


def _sources(
    config: DistillRunConfig, training: AdapterTraining, ranks: Ranks
) -> tuple[TraceSource, TraceSource | None]:
    """What to train on, and what is held out."""
    evaluate = config.evaluate
    if config.traces is not None:
        source = _recorded(config, config.traces.path, training.model, ranks)
        if not evaluate.every:
            return source, None
        assert evaluate.traces is not None
        return source, _recorded(config, evaluate.traces, training.model, ranks)
    engine = build_engine(training.rollout_model, config.attention, config.rollout)

    def rollouts(data: DataConfig) -> TraceSource:
        return PromptRollouts(engine, config.rollout, load_prompts(data, training.model.tokenizer), ranks)

    assert config.data is not None
    return rollouts(config.data), rollouts(evaluate.data) if evaluate.every and evaluate.data else None


def _recorded(config: DistillRunConfig, path: str, model: LanguageModel, ranks: Ranks) -> TraceSource:
    section = config.traces
    assert section is not None
    return RecordedTraces(
        path,
        model,
        config.attention,
        ranks,
        shuffle=section.shuffle,
        seed=section.seed,
        recorded_budgets=section.budgets == "recorded",
    )


def _plan(config: DistillRunConfig, model: LanguageModel, source: str) -> DistillPlan:
    size = model.dtype.itemsize
    num_parameters = sum(p.numel() for p in {id(p): p for p in model.module.parameters()}.values())
    added = adapter_size(model, config.distill.adapter)
    return DistillPlan(
        model=model.name,
        num_parameters=num_parameters,
        adapter_parameters=added.parameters,
        source=source,
        pages=tuple(build_policy(config.policy, config.attention.layout).schedule().pages),
        weight_bytes=(num_parameters + added.merged) * size,
        adapter_bytes=added.parameters * ADAPTER_BYTES,
    )
