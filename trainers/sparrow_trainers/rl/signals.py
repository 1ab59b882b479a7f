"""Stopping a run by Ctrl-C or SIGTERM: once to finish the step and save, twice to stop at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_after_step(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Inside, a first SIGINT or SIGTERM is only noted; the function that is yielded tells. A second one interrupts.

    Does nothing outside the main thread, where Python delivers no signals.
    """
    noted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        if noted:
            raise KeyboardInterrupt
        noted = True
        say("stopping after this step, with a checkpoint; interrupt again to stop at once")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
