"""Finished traces of a rollout that has not ended, so that an interrupted one goes on instead of starting again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from sparrow_core.errors import InputError
from sparrow_core.trace import Trace, TraceMeta, TraceSet

_SAVE_SECONDS = 30.0
"""A killed process loses at most the sequences that ended in this time."""


class PartialTraces:
    """Traces kept in ``directory/unfinished`` while a rollout runs; ``clear`` when its result is written.

    Args:
        meta: what makes the traces; a rollout of other settings does not go on from them.
    """

    def __init__(self, directory: Path, meta: TraceMeta) -> None:
        self.meta = meta
        self._current = directory / "unfinished"
        self._next = directory / "unfinished.next"
        self._saved_at = time.monotonic()

    def load(self) -> list[Trace]:
        """What an earlier run finished; empty when there is none.

        Raises InputError when the directory holds an unfinished rollout of other settings.
        """
        if not (self._current / "traces.json").exists():
            if not (self._next / "traces.json").exists():
                return []
            self._next.replace(self._current)
        kept = TraceSet.load(self._current)
        ours, theirs = _settings(self.meta), _settings(kept.meta)
        different = sorted(key for key in ours if ours[key] != theirs.get(key))
        if different:
            raise InputError(
                f"{self._current} holds an unfinished rollout with other settings in {', '.join(different)}; "
                "give another output, or delete it"
            )
        return kept.traces

    def save_now_and_then(self, traces: Sequence[Trace]) -> None:
        """Save when the last save is a while ago."""
        if time.monotonic() - self._saved_at > _SAVE_SECONDS:
            self.save(traces)

    def save(self, traces: Sequence[Trace]) -> None:
        """Whole or not at all: there is always one complete set on disk."""
        if not traces:
            return
        shutil.rmtree(self._next, ignore_errors=True)
        TraceSet(list(traces), self.meta).save(self._next)
        shutil.rmtree(self._current, ignore_errors=True)
        self._next.replace(self._current)
        self._saved_at = time.monotonic()

    def clear(self) -> None:
        shutil.rmtree(self._current, ignore_errors=True)
        shutil.rmtree(self._next, ignore_errors=True)


def _settings(meta: TraceMeta) -> dict[str, object]:
    """The resolved configuration, without what does not change the traces."""
    return {key: value for key, value in meta.config.items() if key not in ("output", "mismatch")}
