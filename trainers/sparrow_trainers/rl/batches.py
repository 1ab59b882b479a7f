"""Which sequences go into which update, rank and micro-batch. Pure and the same on every rank."""

from __future__ import annotations

import random
from collections.abc import Sequence


def minibatches(groups: Sequence[int], count: int, *, seed: int) -> list[list[int]]:
    """Indices of the sequences of each of ``count`` minibatches; groups stay whole and are dealt out evenly.

    Args:
        groups: each sequence's group.
        seed: of the groups' order; with one minibatch the order is kept.
    """
    order = list(dict.fromkeys(groups))
    if count > 1:
        random.Random(seed).shuffle(order)
    members: dict[int, list[int]] = {group: [] for group in order}
    for index, group in enumerate(groups):
        members[group].append(index)
    parts = [order[part::count] for part in range(count)]
    return [[index for group in part for index in members[group]] for part in parts if part]


def by_rank(sequences: Sequence[int], lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Sequences of each rank, so that the ranks' tokens are about equal: longest first, each to the emptiest rank.

    Within a rank the order given is kept.
    """
    loads = [0] * ranks
    chosen: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(sequences, key=lambda i: (-lengths[i], i)):
        rank = loads.index(min(loads))
        loads[rank] += lengths[index]
        chosen[rank].append(index)
    place = {index: at for at, index in enumerate(sequences)}
    return [sorted(part, key=place.__getitem__) for part in chosen]


def micro_batches(sequences: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Consecutive sequences of at most ``max_tokens`` together; one that is longer goes alone."""
    parts: list[list[int]] = []
    used = 0
    for index in sequences:
        if not parts or used + lengths[index] > max_tokens:
            parts.append([])
            used = 0
        parts[-1].append(index)
        used += lengths[index]
    return parts
