"""Checkpoints through torchtitan's CheckpointManager: weights, optimizer, schedule, and the trainer's own state.

A checkpoint is a directory ``step-N`` that counts once its ``.metadata`` is there, which is written last and renamed
into place, and deleted first when newer ones take its place; whatever a killed process leaves behind is not one.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch.distributed.checkpoint.api import CheckpointException

from sparrow_core.errors import InputError
from sparrow_core.model import titan_compat  # noqa: F401  (before torchtitan)
from sparrow_trainers.titan.config import CheckpointSection
from sparrow_trainers.titan.learner import Learner
from sparrow_trainers.titan.ranks import Ranks

from torchtitan.components.checkpointer import CheckpointManager  # isort: skip

_logger = logging.getLogger(__name__)
FOLDER = "checkpoints"


class JsonState(Protocol):
    """State that is small and the same on every rank."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TensorState(Protocol):
    """Tensors that are the same on every rank, under the same names at every call."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class _AsText:
    """A JsonState as one string, so that a checkpoint holds it whole whatever its keys."""

    def __init__(self, inner: JsonState) -> None:
        self._inner = inner

    def state_dict(self) -> dict[str, Any]:
        return {"json": json.dumps(self._inner.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(json.loads(state["json"]))


def complete_steps(output: Path) -> list[int]:
    """Steps of the complete checkpoints under a run's output directory, ascending."""
    found = []
    for path in (output / FOLDER).glob("step-*"):
        match = re.fullmatch(r"step-(\d+)", path.name)
        if match and (path / ".metadata").is_file():
            found.append(int(match.group(1)))
    return sorted(found)


class Checkpoints:
    """Saves and restores ``state``, a Learner and an adapter where there is one. Every rank must make the same calls.

    Args:
        learner: None where only an adapter is trained.
        adapter: an adapter and its optimizer.
    """

    def __init__(
        self,
        output: Path,
        config: CheckpointSection,
        ranks: Ranks,
        state: JsonState,
        *,
        learner: Learner | None = None,
        adapter: TensorState | None = None,
    ) -> None:
        self._output = output
        self._ranks = ranks
        self._keep = config.keep
        if self._ranks.is_main:
            _remove_incomplete(output)
        settings = CheckpointManager.Config(
            enable=True,
            folder=FOLDER,
            interval=config.interval,
            # Old ones are removed here: the manager's own way can be killed half-way with .metadata still in place.
            keep_latest_k=0,
            initial_load_model_only=False,
            last_save_model_only=False,
            async_mode="async" if config.asynchronous else "disabled",
        )
        self._manager = settings.build(
            dataloader=None,
            model_parts=[] if learner is None else [learner.module],
            optimizers=None if learner is None else learner.optimizers,
            lr_schedulers=None if learner is None else learner.schedulers,
            states={"sparrow": _AsText(state)} | ({} if adapter is None else {"adapter": adapter}),
            sd_adapter=None,
            base_folder=str(output),
        )

    def load(self) -> int | None:
        """Restore the latest complete checkpoint; its step, or None when there is none.

        Raises InputError when it does not fit this model.
        """
        steps = self._ranks.from_main(complete_steps(self._output))
        if not steps:
            return None
        try:
            self._manager.load(steps[-1])
        except (Exception, CheckpointException) as error:
            raise InputError(
                f"the checkpoint step-{steps[-1]} in {str(self._output / FOLDER)!r} cannot be restored into this model "
                f"({_first_line(error)}); continue with the model and settings it was made with, or use a new output"
            ) from error
        return steps[-1]

    def save(self, step: int, *, last: bool = False) -> bool:
        """Save when ``step`` is due or ``last``; True when it did. Raises InputError when this or the save before
        failed, in which case the earlier complete checkpoints are untouched."""
        saved = bool(self._guarded(step, lambda: self._manager.save(step, last_step=last)))
        if saved:
            self._remove_old()
        return saved

    def before_update(self) -> None:
        """Wait until a save under way no longer reads the weights."""
        self._manager.maybe_wait_for_staging()

    def finish(self, step: int) -> None:
        """Wait for the save under way. Raises InputError as ``save`` does."""
        self._guarded(step, self._manager.maybe_wait_for_saving)
        self._remove_old()

    def close(self) -> None:
        self._manager.close()

    def _remove_old(self) -> None:
        """Leave the latest ``keep`` complete checkpoints."""
        if not self._ranks.is_main:
            return
        for step in complete_steps(self._output)[: -self._keep]:
            try:
                remove_checkpoint(self._output / FOLDER / f"step-{step}")
            except OSError as error:
                _logger.warning("the old checkpoint step-%d could not be deleted: %s", step, error)

    def _guarded(self, step: int, save: Callable[[], Any]) -> Any:
        try:
            return save()
        except (Exception, CheckpointException) as error:
            kept = complete_steps(self._output)
            rest = f"step-{kept[-1]} is complete, and the same command goes on from there" if kept else "none is there"
            raise InputError(
                f"a checkpoint in {str(self._output / FOLDER)!r} could not be written at step {step} "
                f"({_first_line(error)}); free space or make the directory writable. Of the earlier ones, {rest}"
            ) from error


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint so that it does not count from the first moment on."""
    (path / ".metadata").unlink(missing_ok=True)
    shutil.rmtree(path)


def _remove_incomplete(output: Path) -> None:
    complete = {f"step-{step}" for step in complete_steps(output)}
    for path in (output / FOLDER).glob("step-*"):
        if path.is_dir() and path.name not in complete:
            shutil.rmtree(path)


def _first_line(error: BaseException) -> str:
    """The innermost cause, which names what went wrong, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"Error|size mismatch|No space", line)]
    return f"{type(error).__name__}: {(named or lines or [''])[-1].strip()}"
