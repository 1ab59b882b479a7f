"""Sharing between length bins: tails fall with length, so a longer bin never needs fewer pages."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow_core.search import running_max


def share_by_length(pages: Sequence[int], measured: Sequence[bool], caps: Sequence[int]) -> tuple[int, ...]:
    """Budgets that do not fall with length, none above its cap.

    A bin without data keeps its budget as far as its neighbours allow: no more than the next longer measured
    bin, whose budget suffices for it, and no less than any shorter bin.

    Args:
        pages: wanted budget per bin.
        measured: whether the bin has data of its own.
        caps: largest budget per bin, not falling with length.
    """
    wanted = list(pages)
    sufficient: int | None = None
    for index in reversed(range(len(wanted))):
        if measured[index]:
            sufficient = wanted[index]
        elif sufficient is not None:
            wanted[index] = min(wanted[index], sufficient)
    return tuple(min(count, cap) for count, cap in zip(running_max(wanted), caps, strict=True))
