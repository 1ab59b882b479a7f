"""Weights & Biases and Trackio, imported only when a configuration asks for them."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparrow_core.errors import InputError
from sparrow_core.train_log import StepRecord, replace_text
from sparrow_trainers.run_log.config import TrackersConfig
from sparrow_trainers.run_log.scalars import scalars

_STEP = "step"
_ID_FILE = "tracker_id.txt"


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


def run_id(directory: Path, start_step: int) -> str:
    """The run's name for trackers, kept in ``tracker_id.txt``: a resumed run has the old one, a new start a new one."""
    path = directory / _ID_FILE
    if start_step == 0 or not path.exists():
        replace_text(path, secrets.token_hex(4) + "\n")
    return path.read_text(encoding="utf-8").strip()


class Wandb:
    """One run per output directory; a resumed one goes on under its id.

    W&B keeps what it has received, so steps repeated after a kill are there twice; its charts are drawn over ``step``.
    """

    def __init__(self, directory: Path, config: TrackersConfig, settings: Mapping[str, Any], own_id: str) -> None:
        self._run = _package("wandb").init(
            project=config.project,
            name=config.run_name or directory.resolve().name,
            id=own_id,
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
    """One run in Trackio's own store, which knows runs by name: the name ends in the run's id.

    Steps repeated after a kill are there twice.
    """

    def __init__(self, directory: Path, config: TrackersConfig, settings: Mapping[str, Any], own_id: str) -> None:
        self._trackio = _package("trackio")
        self._trackio.init(
            project=config.project,
            name=f"{config.run_name or directory.resolve().name}-{own_id}",
            resume="allow",
            config=dict(settings),
        )

    def write(self, record: StepRecord) -> None:
        self._trackio.log(scalars(record), step=record.step)

    def close(self) -> None:
        self._trackio.finish()
