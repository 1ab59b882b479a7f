"""Interleaved timing rounds: CUDA events on a GPU, the host's clock elsewhere."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sparrow_core.errors import InputError

Call = Callable[[], Any]


def time_rounds(
    calls: Mapping[str, Call], device: torch.device, *, rounds: int, repeats: int, reset: Call | None = None
) -> dict[str, list[float]]:
    """Seconds per call of each competitor, one mean per round; the competitors take turns in every round.

    ``reset`` runs before every call, outside the time. Each competitor first runs twice untimed.
    Raises InputError when ``rounds`` or ``repeats`` is below 1.
    """
    for name, value in (("rounds", rounds), ("repeats", repeats)):
        if value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    before = reset or (lambda: None)
    one_round = _cuda_round if device.type == "cuda" else _host_round
    for call in calls.values():
        for _ in range(2):
            before()
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(one_round(call, before, repeats))
    return seconds


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(rounds) for name, rounds in seconds.items()}


def captured(calls: Sequence[Call], device: torch.device) -> Call:
    """All ``calls`` as one: a CUDA graph of them on a GPU, a loop elsewhere. Divide its time by their number."""
    if device.type != "cuda":
        return lambda: [call() for call in calls]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def _cuda_round(call: Call, before: Call, repeats: int) -> float:
    """The first call of a round is not timed: it keeps the GPU busy while the host queues the rest."""
    events = []
    for _ in range(repeats + 1):
        before()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    milliseconds = [start.elapsed_time(end) for start, end in events[1:]]
    return statistics.fmean(milliseconds) / 1000


def _host_round(call: Call, before: Call, repeats: int) -> float:
    seconds = 0.0
    for _ in range(repeats):
        before()
        started = time.perf_counter()
        call()
        seconds += time.perf_counter() - started
    return seconds / repeats
