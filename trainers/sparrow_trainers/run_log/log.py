"""The log of one training run: everything a step leaves for people to look at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from sparrow_core.errors import InputError
from sparrow_core.train_log import INFO, METRICS, RunInfo, StepRecord, read_info, read_records, write_info
from sparrow_trainers.run_log.config import LogConfig
from sparrow_trainers.run_log.samples import SampleFiles, SampleText
from sparrow_trainers.run_log.trackers import Trackio, Wandb, require_trackers, run_id
from sparrow_trainers.run_log.writers import MetricsFile, TensorBoard, Writer

_logger = logging.getLogger(__name__)


class RunLog:
    """Writes step records and sample texts below ``directory``; on ranks other than 0 every method does nothing.

    Use it as a context manager. What stands in the files of ``start_step`` and later is cut.

    Args:
        start_step: the first step that will be written: 0, or the step to resume at.
        settings: the resolved configuration as JSON values, for trackers.

    Raises InputError when a tracker is not installed, a line of the old log is damaged, or a run that starts at step 0
    finds the log of another run in ``directory``.
    """

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        info: RunInfo,
        *,
        start_step: int = 0,
        rank: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._writers: list[Writer] = []
        self._samples: SampleFiles | None = None
        self._directory = directory
        require_trackers(config.trackers)
        if rank != 0:
            return
        try:
            self._open(directory, config, info, start_step, settings or {})
        except OSError as error:
            self.close()
            raise InputError(f"the log in {str(directory)!r} cannot be written: {error}; use another output") from error
        except BaseException:
            self.close()
            raise

    def _open(
        self, directory: Path, config: LogConfig, info: RunInfo, start_step: int, settings: Mapping[str, Any]
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        _check_same_run(directory, info, start_step)
        write_info(directory, info)
        self._writers.append(MetricsFile(directory, start_step))
        self._samples = SampleFiles(directory, config.samples, start_step)
        self._writers.append(TensorBoard(directory, start_step))
        if config.trackers.wandb or config.trackers.trackio:
            own_id = run_id(directory, start_step)
            if config.trackers.wandb:
                self._writers.append(Wandb(directory, config.trackers, settings, own_id))
            if config.trackers.trackio:
                self._writers.append(Trackio(directory, config.trackers, settings, own_id))

    def write(self, record: StepRecord) -> None:
        """Log one step everywhere. Metrics that are not finite are named in a warning too.

        Raises InputError when a file cannot be written, as on a full disk.
        """
        if self._writers and record.non_finite:
            named = ", ".join(f"{name}={value}" for name, value in record.non_finite.items())
            _logger.warning("step %d has metrics that are not finite: %s", record.step, named)
        with self._writing(record.step):
            for writer in self._writers:
                writer.write(record)

    def write_samples(self, step: int, num_samples: int, sample: Callable[[int], SampleText]) -> None:
        """Write a few of a step's samples when it is their turn.

        Args:
            num_samples: how many samples this rank has.
            sample: gives the sample of an index below ``num_samples``; called for the chosen ones alone.

        Raises InputError as ``write`` does.
        """
        if self._samples is None:
            return
        chosen: Sequence[int] = self._samples.chosen(step, num_samples)
        if chosen:
            with self._writing(step):
                self._samples.write(step, [sample(index) for index in chosen])

    def close(self) -> None:
        self._samples = None
        while self._writers:
            try:
                self._writers.pop().close()
            except OSError as error:
                # What was not written before has raised there.
                _logger.warning("the log in %r could not be closed: %s", str(self._directory), error)

    @contextmanager
    def _writing(self, step: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"the log in {str(self._directory)!r} could not be written at step {step} ({error}); free space or "
                "make the directory writable, and the same command goes on from the last checkpoint"
            ) from error

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_same_run(directory: Path, info: RunInfo, start_step: int) -> None:
    """A run that starts anew must not delete the steps of another one."""
    if start_step > 0 or not (directory / METRICS).exists() or not read_records(directory / METRICS):
        return
    if not (directory / INFO).exists() or read_info(directory) != info:
        raise InputError(
            f"{str(directory)!r} holds the log of another training run ({METRICS}), and this one starts at step 0; "
            "give another output, or delete that directory"
        )
