"""A calibration's directory."""

from __future__ import annotations

from pathlib import Path

import torch

from sparrow_core.mismatch import AcceptanceSketch
from sparrow_core.mismatch.stream import Kind
from sparrow_core.replay.recordings import load_recordings
from sparrow_core.report.data import Configuration, Histogram, Run, StepSchedule, TailBin
from sparrow_core.report.files import CALIBRATION, CalibrationCell, CalibrationFile, Pages, read_json
from sparrow_core.schedule import DENSE_PAGES

_MOST_HISTOGRAMS = 4


def read(directory: Path, name: str) -> Run:
    """Raises InputError when a file is damaged."""
    file = read_json(directory / CALIBRATION, CalibrationFile)
    selectors = sorted({cell.selector for cell in file.cells})
    schedules = {s: StepSchedule(s, file.bin_tokens, pages_of(each.pages)) for s, each in file.schedules.items()}
    histograms, bound = _histograms(directory, file)
    return Run(
        name=name,
        kind="calibration",
        model=file.model,
        tau=file.tau,
        quantile=file.quantile,
        bin_tokens=file.bin_tokens,
        bound=bound,
        facts=(
            ("selectors", ", ".join(selectors)),
            ("cheapest selector", file.best),
            ("budgets", ", ".join(map(str, file.budgets)) + " pages"),
        ),
        warnings=file.warnings,
        configurations=tuple(_configuration(cell, selectors) for cell in file.cells),
        is_grid=True,
        histograms=histograms,
        schedules=tuple(schedules.values()),
        scheduled=tuple(_scheduled(file, s, schedule) for s, schedule in schedules.items()),
    )


def pages_of(pages: Pages) -> tuple[int | None, ...]:
    return tuple(None if count == "dense" or count >= DENSE_PAGES else count for count in pages)


def _configuration(cell: CalibrationCell, selectors: list[str]) -> Configuration:
    label = f"{cell.pages} pages" if len(selectors) == 1 else f"{cell.selector}, {cell.pages} pages"
    return Configuration(label, _bins(cell), pages=cell.pages, selector=cell.selector)


def _bins(cell: CalibrationCell) -> tuple[TailBin, ...]:
    return tuple(
        TailBin(b.lo, b.hi, b.tokens, b.tail, b.interval, b.mean, b.kept_fraction) for b in cell.bins if b.tokens
    )


def _scheduled(file: CalibrationFile, selector: str, schedule: StepSchedule) -> Configuration:
    """The schedule's tail in each bin, from the cell of the budget it has there."""
    cells = {cell.pages: _bins(cell) for cell in file.cells if cell.selector == selector}
    bins = [
        b
        for index, pages in enumerate(schedule.pages)
        for b in cells.get(pages or 0, ())
        if b.lo == index * file.bin_tokens
    ]
    return Configuration(f"schedule, {selector}", tuple(bins), selector=selector)


def _histograms(directory: Path, file: CalibrationFile) -> tuple[tuple[Histogram, ...], str]:
    """Acceptances of a few budgets of the cheapest selector, and in words which bound they are."""
    if not (directory / "units").is_dir():
        return (), "as calibrated"
    recordings = load_recordings(directory / "units", file.best)
    kind: Kind = "exact" if recordings.has_exact else "lower"
    both = list(zip(sorted(file.budgets), recordings.rollouts, strict=False))
    count = min(_MOST_HISTOGRAMS, len(both))
    chosen = sorted({round(i * (len(both) - 1) / max(count - 1, 1)) for i in range(count)})
    histograms = []
    for budget, rollout in (both[index] for index in chosen):
        sketch = AcceptanceSketch()
        sketch.add(torch.from_numpy(rollout.acceptance(kind)))
        histograms.append(Histogram(f"{file.best}, {budget} pages", sketch))
    return tuple(histograms), "exact" if kind == "exact" else "lower bound"
