"""A rollout's traces together with what made them."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparrow_core.mismatch.stream import MismatchStream
from sparrow_core.trace.files import FORMAT_VERSION, TraceFileError, read_traces, write_traces
from sparrow_core.trace.record import Trace


def tool_version() -> str:
    """Version of the installed distribution, or ``unknown`` when it runs from bare source."""
    try:
        return version("sparrow-rollout")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """What made the traces. ``config`` is the resolved config as JSON values."""

    model: str
    backend: str
    selector: str
    policy: str
    page_size: int
    sink_pages: int
    recent_pages: int
    dense_layers: tuple[int, ...]
    config: dict[str, Any] = field(default_factory=dict)
    tool_version: str = field(default_factory=tool_version)
    format_version: int = FORMAT_VERSION


@dataclass(slots=True, eq=False)
class TraceSet:
    """Traces of one rollout, in order."""

    traces: list[Trace]
    meta: TraceMeta

    def __len__(self) -> int:
        return len(self.traces)

    def mismatch(self, *, bin_tokens: int = 2000, num_bins: int = 20, quantile: float = 0.05) -> MismatchStream:
        """Acceptance by length bin, from the dense scores.

        Raises InputError naming the trace that has not been scored.
        """
        stream = MismatchStream(bin_tokens=bin_tokens, num_bins=num_bins, quantile=quantile)
        for trace in self.traces:
            stream.observe(trace.mismatch(self.meta.page_size))
        return stream

    def equals(self, other: TraceSet) -> bool:
        """Bitwise equality of every trace, and equality of the meta."""
        same_size = self.meta == other.meta and len(self) == len(other)
        return same_size and all(a.equals(b) for a, b in zip(self.traces, other.traces, strict=True))

    def save(self, directory: str | Path) -> None:
        """Write ``traces.safetensors`` and ``traces.json`` into ``directory``, made when it is missing.

        Each file appears whole or not at all, the JSON last; it holds the tensors' checksum.

        Raises TraceFileError when the directory cannot be written or the traces' hidden dtypes differ.
        """
        write_traces(Path(directory), self.traces, _meta_json(self.meta))

    @classmethod
    def load(cls, directory: str | Path) -> TraceSet:
        """Read what ``save`` wrote, bit for bit. Tensors are views of the mapped file until they are changed.

        Raises TraceFileError for a missing, truncated or altered file, a missing field or another format version.
        """
        traces, meta = read_traces(Path(directory))
        names = set(TraceMeta.__dataclass_fields__)
        if set(meta) != names:
            different = ", ".join(sorted(set(meta) ^ names))
            raise TraceFileError(f"traces.json in {directory} does not fit its format: meta differs in {different}")
        return cls(traces, TraceMeta(**{**meta, "dense_layers": tuple(meta["dense_layers"])}))


def _meta_json(meta: TraceMeta) -> dict[str, Any]:
    return {name: getattr(meta, name) for name in TraceMeta.__dataclass_fields__}
