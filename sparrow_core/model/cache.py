"""The user cache: directories made once, checked by SHA-256 on every use, and made again when broken."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparrow_core.errors import InputError

MANIFEST = "manifest.json"


def cache_root() -> Path:
    """``$SPARROW_CACHE``, else ``$XDG_CACHE_HOME/sparrow``, else ``~/.cache/sparrow``."""
    if value := os.environ.get("SPARROW_CACHE"):
        return Path(value).expanduser()
    if value := os.environ.get("XDG_CACHE_HOME"):
        return Path(value).expanduser() / "sparrow"
    return Path.home() / ".cache" / "sparrow"


def cached_directory(key: str, make: Callable[[Path], None]) -> Path:
    """The cache's directory ``key``; ``make(directory)`` fills it when it is absent, incomplete or damaged.

    It appears by one rename, complete with its manifest. Processes that ask at the same time wait for one of them.

    Raises InputError when the cache cannot be written; what ``make`` raises passes through.
    """
    target = cache_root() / key
    if is_intact(target):
        return target
    with _writable(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(target):
        if not is_intact(target):
            _make(target, make)
    return target


def is_intact(directory: Path) -> bool:
    """Whether every file of the manifest is there with its size and SHA-256."""
    try:
        files = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["files"]
        entries = [(directory / name, entry["bytes"], entry["sha256"]) for name, entry in files.items()]
        return all(path.stat().st_size == size for path, size, _ in entries) and all(
            _sha256(path) == digest for path, _, digest in entries
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _make(target: Path, make: Callable[[Path], None]) -> None:
    with _writable(target.parent):
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        with _writable(target.parent):
            make(work)
            _write_manifest(work)
            if target.exists():
                target.rename(work.with_suffix(".broken"))
            work.chmod(0o755)
            work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(work.with_suffix(".broken"), ignore_errors=True)


def _write_manifest(directory: Path) -> None:
    files = {
        str(path.relative_to(directory)): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    (directory / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    """Hold the lock file beside ``target``; the system releases it when the process ends."""
    with _writable(target.parent):
        lock = (target.parent / f".{target.name}.lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        lock.close()


@contextmanager
def _writable(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cache directory {str(directory)!r} cannot be written ({error.strerror or error}); "
            "set SPARROW_CACHE to a directory you can write to, with room for the model"
        ) from error
