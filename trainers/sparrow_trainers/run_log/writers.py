"""Where step records go always: ``metrics.jsonl`` and TensorBoard event files, both in step with a resumed run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from torch.utils.tensorboard import SummaryWriter

from sparrow_core.train_log import METRICS, StepRecord, read_records, replace_text
from sparrow_trainers.run_log.scalars import scalars

TENSORBOARD = "tensorboard"


class Writer(Protocol):
    def write(self, record: StepRecord) -> None: ...

    def close(self) -> None: ...


class MetricsFile:
    """Appends one line per step; a line is on disk before ``write`` returns.

    Opening cuts the lines of ``start_step`` and later, and a last line that a kill left unfinished, so that every step
    stands in the file once.

    Raises InputError when an earlier line is damaged.
    """

    def __init__(self, directory: Path, start_step: int) -> None:
        self._path = directory / METRICS
        if self._path.exists():
            kept = [record for record in read_records(self._path) if record.step < start_step]
            replace_text(self._path, "".join(f"{record.line()}\n" for record in kept))
        self._stream = self._path.open("a", encoding="utf-8")

    def write(self, record: StepRecord) -> None:
        self._stream.write(record.line() + "\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


class TensorBoard:
    """Event files below ``tensorboard/``; TensorBoard hides what earlier files hold of ``start_step`` and later."""

    def __init__(self, directory: Path, start_step: int) -> None:
        self._writer = SummaryWriter(str(directory / TENSORBOARD), purge_step=start_step)

    def write(self, record: StepRecord) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
