"""From run directories to what the report shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparrow_core.errors import InputError
from sparrow_core.report import calibrated, files, measured, observed, trained
from sparrow_core.report.data import Run
from sparrow_core.train_log import METRICS

_READERS = (
    (files.CALIBRATION, calibrated.read),
    (files.OBSERVATIONS, observed.read),
    (files.MEASURE, measured.read),
    (files.TRACES, measured.read),
    (METRICS, trained.read),
)


def read_runs(directories: Sequence[Path]) -> list[Run]:
    """One entry per kind of result in each directory; a directory without any gives those of its sub-directories.

    Raises InputError for a directory that holds no run, or a damaged file.
    """
    runs: list[Run] = []
    for directory in directories:
        names = [path.name for path in directories]
        own = directory.resolve().name if names.count(directory.name) == 1 else str(directory)
        found = _read(directory, own)
        if not found:
            for child in sorted(path for path in directory.iterdir() if path.is_dir()):
                found += _read(child, f"{own}/{child.name}")
        if not found:
            raise InputError(_no_run(directory))
        runs += found
    return runs


def _read(directory: Path, name: str) -> list[Run]:
    if not directory.is_dir():
        raise InputError(f"{str(directory)!r} is no directory; give the output directory of a run")
    runs = []
    done: set[Any] = set()
    for file, reader in _READERS:
        if reader not in done and (directory / file).exists():
            done.add(reader)
            runs.append(reader(directory, name))
    return runs


def _no_run(directory: Path) -> str:
    if (directory / "units").is_dir():
        return (
            f"{str(directory)!r} holds a calibration that is not finished (no {files.CALIBRATION}); "
            "run sparrow calibrate with the same settings to finish it"
        )
    wanted = ", ".join(file for file, _ in _READERS)
    return (
        f"{str(directory)!r} holds no run, nor does any directory in it: none of {wanted} is there; give the output "
        "directory of sparrow measure, calibrate, replay or train"
    )
