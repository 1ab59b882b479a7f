"""Weights & Biases and Trackio, imported only when a configuration asks for them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparrow_core.errors import InputError
from sparrow_core.train_log import StepRecord, replace_text
from sparrow_trainers.run_log.config import TrackersConfig
from sparrow_trainers.run_log.scalars import scalars

_STEP = "step"


def require_trackers(config: TrackersConfig) -> None:
    """Raises InputError when a tracker that is asked for is not installed; call it before work starts."""
    for name in ("wandb", "trackio"):
        if getattr(config, name):
            _package(name)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"trackers.{name}=true needs the package {name}, which cannot be imported ({error}); "
            f"pip install 'sparrow-rollout[trackers]' or set trackers.{name}=false"
        ) from error


class Wandb:
    """One run per output directory: a resumed one goes on under the id in ``wandb_id.txt``.

    W&B keeps what it has received, so steps repeated after a kill are there twice; its charts are drawn over ``step``.
    """

    def __init__(self, directory: Path, config: TrackersConfig, settings: Mapping[str, Any]) -> None:
        wandb = _package("wandb")
        id_file = directory / "wandb_id.txt"
        if not id_file.exists():
            replace_text(id_file, wandb.util.generate_id() + "\n")
        self._run = wandb.init(
            project=config.project,
            name=config.run_name or directory.resolve().name,
            id=id_file.read_text(encoding="utf-8").strip(),
            resume="allow",
            mode=config.wandb_mode,
            dir=str(directory),
            config=dict(settings),
        )
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def write(self, record: StepRecord) -> None:
        self._run.log({**scalars(record), _STEP: record.step})

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """One run per name in Trackio's own store; a resumed one goes on under its name."""

    def __init__(self, directory: Path, config: TrackersConfig, settings: Mapping[str, Any]) -> None:
        self._trackio = _package("trackio")
        self._trackio.init(
            project=config.project,
            name=config.run_name or directory.resolve().name,
            resume="allow",
            config=dict(settings),
        )

    def write(self, record: StepRecord) -> None:
        self._trackio.log(scalars(record), step=record.step)

    def close(self) -> None:
        self._trackio.finish()
