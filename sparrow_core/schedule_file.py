"""Schedules on disk: the JSON a calibration writes and the ``schedule`` policy reads.

``{"format": 1, "model", "selector", "page_size", "bin_tokens", "sink_pages", "recent_pages", "pages": [...],
"provenance": {...}}``. ``pages`` holds one count per length bin, sink and recent pages included, or ``"dense"``.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, StrictInt

from sparrow_core.config import Section, validate
from sparrow_core.contracts import PluginConfig, SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule

FORMAT = 1


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """A schedule with what it was made for."""

    schedule: BudgetSchedule
    model: str
    selector: str
    provenance: dict[str, Any] = field(default_factory=dict)
    """How it was found; JSON values."""


class _File(Section):
    format: Literal[1]
    model: str = Field(description="name of the model it was made for")
    selector: str = Field(description="name of the page selector it was made for")
    page_size: StrictInt = Field(ge=1, description="tokens per KV page")
    bin_tokens: StrictInt = Field(ge=1, description="context tokens per length bin")
    sink_pages: StrictInt = Field(ge=0)
    recent_pages: StrictInt = Field(ge=1)
    pages: list[StrictInt | Literal["dense"]] = Field(min_length=1, description='one count per length bin, or "dense"')
    provenance: dict[str, Any] = Field(default={}, description="how it was found")


def read_schedule(path: str | Path) -> ScheduleFile:
    """Raises InputError when the file is missing, is not JSON, lacks a key, or holds counts that cannot be meant.

    Counts must be at least sink + recent + 1 and must not fall with length.
    """
    source = f"schedule file {str(path)!r}"
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_distinct_keys)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}; give a file made by calibration") from error
    except ValueError as error:
        raise InputError(f"{source} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{source} must hold a JSON object, not {data!r:.80}")
    file = validate(_File, data, source)
    pages = [DENSE_PAGES if count == "dense" else count for count in file.pages]
    _check_pages(pages, file, source)
    schedule = BudgetSchedule(tuple(pages), file.bin_tokens, file.page_size, file.sink_pages, file.recent_pages)
    return ScheduleFile(schedule, file.model, file.selector, file.provenance)


def write_schedule(path: str | Path, file: ScheduleFile) -> Path:
    """Write atomically, making the directory. Raises InputError when the schedule or the path cannot be used."""
    schedule, path = file.schedule, Path(path)
    checked = _File(
        format=FORMAT,
        model=file.model,
        selector=file.selector,
        page_size=schedule.page_size,
        bin_tokens=schedule.bin_tokens,
        sink_pages=schedule.sink_pages,
        recent_pages=schedule.recent_pages,
        pages=["dense" if count == DENSE_PAGES else count for count in schedule.pages],
        provenance=file.provenance,
    )
    _check_pages(list(schedule.pages), checked, f"schedule for {str(path)!r}")
    text = json.dumps(checked.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, text)
    except OSError as error:
        raise InputError(
            f"schedule file {str(path)!r} cannot be written: {error.strerror}; give another path"
        ) from error
    return path


def check_layout(schedule: BudgetSchedule, layout: SparseLayout, origin: str) -> None:
    """Raises InputError when ``schedule`` counts other pages than ``layout`` has; ``origin`` names it."""
    keys = ("page_size", "sink_pages", "recent_pages")
    differing = [key for key in keys if getattr(schedule, key) != getattr(layout, key)]
    if differing:
        made = ", ".join(f"{key}={getattr(schedule, key)}" for key in differing)
        given = ", ".join(f"attention.{key}={getattr(layout, key)}" for key in differing)
        fix = " ".join(f"attention.{key}={getattr(schedule, key)}" for key in differing)
        raise InputError(f"{origin} was made for {made}, but {given}; set {fix} or use another schedule")


def check_origin(file: ScheduleFile, model: str, selector: str, origin: str) -> None:
    """Raises InputError when ``file`` was made for another model or selector; ``origin`` names it."""
    pairs = [("model", file.model, model), ("selector", file.selector, selector)]
    differing = [f"{key} {made!r}, not {used!r}" for key, made, used in pairs if made.lower() != used.lower()]
    if differing:
        raise InputError(f"{origin} was made for {' and '.join(differing)}; calibrate for this model and selector")


def check_policy_origin(policy: PluginConfig, model: str, selector: str) -> None:
    """Refuse a ``schedule`` policy whose file was made for another model or selector. Raises InputError."""
    file = getattr(policy, "file", None)
    if policy.type == "schedule" and file is not None:
        check_origin(read_schedule(file), model, selector, f"policy.file={file!r}")


def _check_pages(pages: list[int], file: _File, source: str) -> None:
    least = file.sink_pages + file.recent_pages + 1
    for index, count in enumerate(pages):
        start, end = index * file.bin_tokens, (index + 1) * file.bin_tokens
        tokens = f"{start} to {end} tokens" if index + 1 < len(pages) else f"from {start} tokens"
        where = f"{source}: pages[{index}]={count} (bin {index}, {tokens})"
        if not least <= count <= DENSE_PAGES:
            raise InputError(f"{where} must be at least sink + recent + 1 = {least} and at most {DENSE_PAGES}")
        if index and count < pages[index - 1]:
            raise InputError(
                f"{where} is below pages[{index - 1}]={pages[index - 1]}; a longer context must not get fewer pages"
            )


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"key {key!r} stands twice; remove one")
    return dict(pairs)


def _write_atomically(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
