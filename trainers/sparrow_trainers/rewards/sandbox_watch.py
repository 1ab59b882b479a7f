"""Feeds a sandbox, reads it, and ends it at its limits."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
from dataclasses import dataclass, field
from time import monotonic
from typing import IO

from sparrow_trainers.rewards.sandbox_job import Ending, SandboxLimits, SandboxRun

_TICK_S = 0.02
_CHUNK = 65536
_STARTED = b"started\n"


@dataclass(slots=True)
class _Streams:
    """What came out so far, by stream."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    result: bytearray = field(default_factory=bytearray)

    @property
    def size(self) -> int:
        return len(self.stdout) + len(self.stderr) + len(self.result)


def watch(process: subprocess.Popen[bytes], result_fd: int, stdin: bytes, limits: SandboxLimits) -> SandboxRun:
    """Runs ``process`` to its end or to a limit; then neither it nor anything it started is left."""
    streams = _Streams()
    with contextlib.closing(selectors.DefaultSelector()) as selector, os.fdopen(result_fd, "rb", buffering=0) as result:
        try:
            cause = _pump(process, result, stdin, limits, selector, streams)
        finally:
            _end(process)
    ending: Ending = cause or ("exit" if 0 <= process.returncode < 128 else "signal")
    head, started, rest = bytes(streams.result).partition(_STARTED)
    return SandboxRun(
        ending,
        process.returncode if ending == "exit" else 0,
        streams.stdout.decode("utf-8", "replace"),
        streams.stderr.decode("utf-8", "replace"),
        (rest if started else head).decode("utf-8", "replace"),
        bool(started),
    )


def _pump(
    process: subprocess.Popen[bytes],
    result: IO[bytes],
    stdin: bytes,
    limits: SandboxLimits,
    selector: selectors.BaseSelector,
    streams: _Streams,
) -> Ending | None:
    """The limit that was hit; None when all output has ended by itself."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    readers: dict[IO[bytes], bytearray] = {
        process.stdout: streams.stdout,
        process.stderr: streams.stderr,
        result: streams.result,
    }
    for reader in readers:
        selector.register(reader, selectors.EVENT_READ)
    os.set_blocking(process.stdin.fileno(), False)
    selector.register(process.stdin, selectors.EVENT_WRITE)
    deadline, left = monotonic() + limits.time_s, memoryview(stdin)
    open_readers = set(readers)
    while open_readers:
        if monotonic() >= deadline:
            return "time"
        if streams.size > limits.output_kb * 1024:
            return "output"
        if _private_bytes(process.pid) > limits.memory_mb * 2**20:
            return "memory"
        for key, _ in selector.select(min(_TICK_S, max(0.0, deadline - monotonic()))):
            if key.fileobj is process.stdin:
                left = _feed(process.stdin, left, selector)
                continue
            stream = next(reader for reader in open_readers if reader is key.fileobj)
            chunk = os.read(stream.fileno(), _CHUNK)
            readers[stream].extend(chunk)
            if not chunk:
                selector.unregister(stream)
                open_readers.discard(stream)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=max(0.0, deadline - monotonic()))
        return None
    return "time"


def _feed(stdin: IO[bytes], left: memoryview, selector: selectors.BaseSelector) -> memoryview:
    try:
        left = left[os.write(stdin.fileno(), left[:_CHUNK]) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:
        left = left[:0]
    if not left:
        selector.unregister(stdin)
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
    return left


def _end(process: subprocess.Popen[bytes]) -> None:
    # The first process of the namespace dies with bubblewrap, and the kernel ends all others with it.
    process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    process.wait()


def _private_bytes(pid: int) -> int:
    """Resident memory of the process and its descendants that no file backs; what forks share counts for each."""
    total, todo = 0, [pid]
    while todo:
        each = todo.pop()
        try:
            with open(f"/proc/{each}/status") as file:
                sizes = [line.split()[1] for line in file if line.startswith(("RssAnon:", "RssShmem:"))]
            for thread in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{thread}/children") as file:
                    todo += [int(child) for child in file.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(map(int, sizes)) * 1024
    return total
