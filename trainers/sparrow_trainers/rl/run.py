"""A training run from its configuration: check everything, set it up on this rank, train, export."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sparrow_core.config import load_as, resolved, save_config
from sparrow_core.config.load import CONFIG_FILE
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel, export_model, inspect_model, load_model, resolve_device
from sparrow_core.schedule_file import check_policy_origin
from sparrow_core.train_log import StepRecord
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.data.prompt_set import PromptSet, load_prompts
from sparrow_trainers.distill.adapter_files import replace_adapter
from sparrow_trainers.objectives.objective import build_objective
from sparrow_trainers.rewards.pool import RewardPool
from sparrow_trainers.rl.plan import Plan, make_plan
from sparrow_trainers.rl.trainer import Trainer
from sparrow_trainers.run_log.trackers import require_trackers
from sparrow_trainers.titan.config import ParallelSection
from sparrow_trainers.titan.learner import compute_dtype
from sparrow_trainers.titan.ranks import Ranks, check_world, running_ranks

_MAY_CHANGE = {"checkpoint", "evaluate", "log", "memory", "output", "parallel", "train"}
"""Sections that a resumed run may set anew; of ``train`` only ``steps`` and the token limits."""
_FIXED_TRAIN = ("prompts_per_step", "minibatches", "epochs")
MODEL_FOLDER = "model"


def dry_run(config: TrainConfig) -> Plan:
    """Check files, model, prompts, rewards, objective, schedule and ranks, and count memory; nothing is written."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    check_world(config.parallel, world)
    check_output(config, may_change=_MAY_CHANGE, fixed_train=_FIXED_TRAIN)
    model, prompts, _ = _load(config, inspect_model(config.model.source))
    with RewardPool(config.rewards):
        pass
    build_objective(config.objective)
    require_trackers(config.log.trackers)
    return _plan(config, model, prompts, world)


def train(config: TrainConfig, console: Console | None) -> StepRecord | None:
    """Train to the end, from the latest checkpoint of ``config.output`` where there is one; the last step's record.

    None when the run was complete already. Raises InputError for anything in the configuration that cannot work,
    before anything is generated.
    """
    device = resolve_device(config.model.device)
    with running_ranks(config.parallel, device) as ranks:
        ranks.check_all(_problem(config, ranks))
        whole = load_model(config.model.source, dtype=torch.float32, device=ranks.device)
        model, prompts, eval_prompts = _load(config, whole)
        plan = _plan(config, model, prompts, ranks.world)
        if console is not None and ranks.is_main:
            for line in plan.lines():
                console.print(line, markup=False)
        with RewardPool(config.rewards) as rewards:
            trainer = Trainer(config, model, prompts, eval_prompts, ranks, rewards, console)
            try:
                record = trainer.run()
                if config.checkpoint.export:
                    _export(trainer, ranks)
                    if trainer.distillation is not None and ranks.is_main:
                        replace_adapter(trainer.distillation.training.adapter, trainer.learner.policy, trainer.output)
            finally:
                trainer.close()
        return record


def _problem(config: TrainConfig, ranks: Ranks) -> str | None:
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


def check_output(config: Any, *, may_change: Collection[str], fixed_train: Sequence[str]) -> None:
    """Refuse an output directory that holds a run with other settings.

    Args:
        config: a run's root section with ``train`` and ``output``.
        may_change: sections that a resumed run may set anew.
        fixed_train: keys of ``train`` that it may not.
    """
    path = Path(config.output) / CONFIG_FILE
    if not path.exists():
        return
    there, ours = resolved(load_as(type(config), path)), resolved(config)
    different = [key for key in ours if key not in may_change and ours[key] != there.get(key)]
    different += [f"train.{key}" for key in fixed_train if ours["train"][key] != there["train"][key]]
    if different:
        raise InputError(
            f"output={config.output!r} holds a run with other settings in {', '.join(sorted(different))}; give another "
            "output, or the same settings to go on with it"
        )


def _load(config: TrainConfig, model: LanguageModel) -> tuple[LanguageModel, PromptSet, PromptSet | None]:
    check_policy_origin(config.policy, model.name, config.attention.selector.type)
    prompts = load_prompts(config.data, model.tokenizer)
    if not config.evaluate.every:
        return model, prompts, None
    data = config.data if config.evaluate.data is None else config.evaluate.data
    return model, prompts, load_prompts(data, model.tokenizer)


def _plan(config: TrainConfig, model: LanguageModel, prompts: PromptSet, world: int) -> Plan:
    device = resolve_device(config.model.device)
    dtype = compute_dtype(config.memory, device)
    return make_plan(
        config,
        model,
        prompts,
        shards=_shards(config.parallel, world),
        is_shared=world == 1 and dtype == torch.float32,
        dtype=dtype,
    )


def _shards(parallel: ParallelSection, world: int) -> int:
    """Ranks that split one copy of weights and optimizer."""
    return world // parallel.dp_replicate


def _export(trainer: Trainer, ranks: Ranks) -> None:
    """The final weights as ``output/model``, in place of an earlier export."""
    weights = trainer.learner.full_weights()
    if not ranks.is_main:
        return
    target = trainer.output / MODEL_FOLDER
    with tempfile.TemporaryDirectory(prefix=".model.", dir=trainer.output) as work:
        finished = export_model(weights, Path(work) / MODEL_FOLDER)
        if target.exists():
            shutil.rmtree(target)
        finished.replace(target)
