"""The kernel cases that figures are published for: one layer's decode step each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparrow_core.bench.pages import spread_lengths
from sparrow_core.errors import InputError

KINDS = ("dense", "selected", "select")


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One decode step of one layer, attended densely or to selected pages, or its scoring and selection alone."""

    kind: str
    """``dense``, ``selected`` or ``select``."""
    batch: int
    length: int
    group: int
    """Query heads per KV head."""
    pages: int = 0
    """Selected pages; 0 for dense."""
    spread: bool = False
    """Lengths spread evenly over 0 to ``length`` instead of all equal."""

    @property
    def name(self) -> str:
        size = f"{self.length // 1024}K" if self.length % 1024 == 0 else str(self.length)
        parts = [self.kind, f"B{self.batch}", *(["spread"] if self.spread else []), size]
        return " ".join([*parts, *([f"{self.pages} pages"] if self.pages else []), f"g{self.group}"])

    @property
    def lengths(self) -> list[int]:
        return spread_lengths(self.batch, self.length) if self.spread else [self.length] * self.batch


DENSE = [
    KernelCase("dense", 16, 16384, 2),
    KernelCase("dense", 16, 32768, 4),
    KernelCase("dense", 32, 16384, 2),
    KernelCase("dense", 32, 32768, 4),
    KernelCase("dense", 64, 16384, 2),
    KernelCase("dense", 36, 32768, 5, spread=True),
    KernelCase("dense", 64, 32768, 2, spread=True),
]
SELECTED = [
    KernelCase("selected", 16, 32768, 4, 253),
    KernelCase("selected", 32, 16384, 2, 224),
    KernelCase("selected", 64, 16384, 2, 224),
    KernelCase("selected", 16, 16384, 2, 224),
    KernelCase("selected", 64, 32768, 2, 224, spread=True),
]
SELECT = [
    KernelCase("select", 16, 32768, 4, 256),
    KernelCase("select", 32, 16384, 2, 224),
    KernelCase("select", 32, 32768, 2, 256),
    KernelCase("select", 64, 16384, 2, 224),
    KernelCase("select", 64, 32768, 2, 224, spread=True),
]


def parsed(text: str) -> KernelCase:
    """A case of ``KIND:BATCH:LENGTH:GROUP[:PAGES][:spread]``. Raises InputError when it is not of that form."""
    kind, *rest = text.split(":")
    spread = rest[-1:] == ["spread"]
    counts = rest[:-1] if spread else rest
    expected = 3 if kind == "dense" else 4
    if kind not in KINDS or len(counts) != expected or not all(c.isdecimal() and int(c) > 0 for c in counts):
        raise InputError(
            f"--case={text!r} must be dense:BATCH:LENGTH:GROUP or selected|select:BATCH:LENGTH:GROUP:PAGES, "
            "with :spread after it for lengths spread over 0 to LENGTH"
        )
    batch, length, group, *pages = map(int, counts)
    return KernelCase(kind, batch, length, group, pages[0] if pages else 0, spread)


def chosen(listed: Sequence[str], only: str) -> list[KernelCase]:
    """The cases listed, or the published ones whose name starts with ``only``; never both.

    Raises InputError when both are given or no case is left.
    """
    if listed:
        if only:
            raise InputError(f"--only={only!r} chooses among the published cases; leave it or --case out")
        return [parsed(text) for text in listed]
    published = [*DENSE, *SELECTED, *SELECT]
    cases = [case for case in published if case.name.startswith(only)]
    if not cases:
        raise InputError(f"--only={only!r} matches no case; they are {', '.join(case.name for case in published)}")
    return cases
