"""Scored traces on disk, as the tokens of rollouts under known budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.mismatch.stream import Kind
from sparrow_core.trace import Trace, TraceMeta, TraceSet
from sparrow_core.trace.files import JSON_NAME

_GRID_POLICY = "budget_grid"
"""The policy that a calibration's units name: sample i of every prompt was scored under budget i."""

_SAME = ("model", "page_size", "sink_pages", "recent_pages", "dense_layers")
"""Fields of the meta that traces replayed together must share."""


@dataclass(frozen=True, slots=True)
class RecordedTokens:
    """Tokens of one rollout, or of one budget of a calibration: parallel arrays ``[T]`` in the order of length."""

    lengths_T: NDArray[np.int64]
    pages_T: NDArray[np.int64]
    """Capped at the pages the sequence had."""
    lower_T: NDArray[np.float64]
    upper_T: NDArray[np.float64]
    exact_T: NDArray[np.float64] | None
    is_grid: bool
    """One budget of several that scored the same prompts."""

    def acceptance(self, kind: Kind) -> NDArray[np.float64]:
        values: dict[Kind, NDArray[np.float64] | None] = {
            "lower": self.lower_T,
            "upper": self.upper_T,
            "exact": self.exact_T,
        }
        found = values[kind]
        assert found is not None
        return found

    def take(self, rows: slice | NDArray[np.int64]) -> RecordedTokens:
        exact_T = None if self.exact_T is None else self.exact_T[rows]
        return RecordedTokens(
            self.lengths_T[rows], self.pages_T[rows], self.lower_T[rows], self.upper_T[rows], exact_T, self.is_grid
        )

    def between(self, lo: int, hi: int | None) -> RecordedTokens:
        """The tokens with ``lo <= length < hi``."""
        start = int(np.searchsorted(self.lengths_T, lo))
        stop = len(self.lengths_T) if hi is None else int(np.searchsorted(self.lengths_T, hi))
        return self.take(slice(start, stop))


@dataclass(frozen=True, slots=True)
class Recordings:
    """Everything a directory recorded of one model under one selector."""

    source: str
    meta: TraceMeta
    rollouts: tuple[RecordedTokens, ...]

    @property
    def layout(self) -> SparseLayout:
        meta = self.meta
        return SparseLayout(meta.page_size, meta.sink_pages, meta.recent_pages, meta.dense_layers)

    @property
    def has_exact(self) -> bool:
        return all(rollout.exact_T is not None for rollout in self.rollouts)


def merged(parts: Sequence[RecordedTokens]) -> RecordedTokens:
    """All tokens of the parts, by length; exact acceptances only where every part has them."""

    def joined(get: Callable[[RecordedTokens], NDArray[np.float64] | None]) -> NDArray[np.float64] | None:
        arrays = [array for part in parts if (array := get(part)) is not None]
        return np.concatenate(arrays) if len(arrays) == len(parts) else None

    lower_T, upper_T = joined(lambda p: p.lower_T), joined(lambda p: p.upper_T)
    assert lower_T is not None
    assert upper_T is not None
    lengths_T = np.concatenate([p.lengths_T for p in parts])
    together = RecordedTokens(
        lengths_T,
        np.concatenate([p.pages_T for p in parts]),
        lower_T,
        upper_T,
        joined(lambda p: p.exact_T),
        all(p.is_grid for p in parts),
    )
    return together.take(np.argsort(lengths_T, kind="stable"))


def load_recordings(directory: str | Path, selector: str | None = None) -> Recordings:
    """The scored traces in ``directory`` or anywhere below it: a measured run, several of them, or a calibration.

    Raises InputError when there are none, when they are of several models, layouts, temperatures or (with
    ``selector`` None) selectors, or when a trace has no dense scores.
    """
    sets = [(path, TraceSet.load(path)) for path in trace_directories(Path(directory))]
    sets = _of_selector(sets, selector, directory)
    _check_same(sets, directory)
    parts: dict[tuple[str, int], list[RecordedTokens]] = {}
    for path, traces in sets:
        is_grid = traces.meta.policy == _GRID_POLICY
        for trace in traces.traces:
            key = ("", trace.key.sample) if is_grid else (str(path), trace.key.step)
            parts.setdefault(key, []).append(_tokens(trace, is_grid=is_grid))
    if not parts:
        raise InputError(f"{str(directory)!r} holds no trace; record some with sparrow measure or sparrow calibrate")
    rollouts = tuple(merged(parts[key]) for key in sorted(parts))
    return Recordings(str(directory), sets[0][1].meta, rollouts)


def trace_directories(directory: Path) -> list[Path]:
    """Directories with traces, in order. A calibration's dense texts, which are not scored, are left out."""
    if not directory.is_dir():
        raise InputError(f"{str(directory)!r} is no directory; give one that holds traces or a calibration's units")
    found = sorted(path.parent for path in directory.rglob(JSON_NAME))
    found = [path for path in found if path.resolve().parts[-3:-1] != ("units", "dense")]
    if not found:
        raise InputError(
            f"{str(directory)!r} holds no {JSON_NAME}, nor does any directory below it; record traces with "
            "sparrow measure or sparrow calibrate"
        )
    return found


def _tokens(trace: Trace, *, is_grid: bool) -> RecordedTokens:
    scores = trace.scores()
    exact = scores.acceptance_exact
    return RecordedTokens(
        trace.lengths.numpy(),
        trace.pages.numpy().astype(np.int64),
        scores.acceptance_lower.numpy().astype(np.float64),
        scores.acceptance_upper.numpy().astype(np.float64),
        None if exact is None else exact.numpy().astype(np.float64),
        is_grid,
    )


def _of_selector(
    sets: list[tuple[Path, TraceSet]], selector: str | None, directory: str | Path
) -> list[tuple[Path, TraceSet]]:
    there = sorted({traces.meta.selector for _, traces in sets})
    if selector is None and len(there) > 1:
        raise InputError(
            f"{str(directory)!r} holds traces of the selectors {', '.join(there)}; set selector={there[0]} or another"
        )
    kept = [item for item in sets if selector is None or item[1].meta.selector == selector]
    if not kept:
        raise InputError(f"selector={selector!r} has no traces in {str(directory)!r}; there are {', '.join(there)}")
    return kept


def _check_same(sets: list[tuple[Path, TraceSet]], directory: str | Path) -> None:
    first_path, first = sets[0]
    for path, traces in sets[1:]:
        differing = [name for name in _SAME if getattr(traces.meta, name) != getattr(first.meta, name)]
        if differing:
            listed = " and ".join(
                f"{name}={getattr(first.meta, name)!r} in {first_path}, {getattr(traces.meta, name)!r} in {path}"
                for name in differing
            )
            raise InputError(f"{str(directory)!r} mixes traces that cannot be replayed together: {listed}; keep one")
    temperatures = sorted({trace.temperature for _, traces in sets for trace in traces.traces})
    if len(temperatures) > 1:
        raise InputError(
            f"{str(directory)!r} mixes traces of temperatures {', '.join(map(str, temperatures))}, whose acceptances "
            "cannot be compared; keep those of one"
        )
