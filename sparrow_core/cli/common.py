"""What the commands share: consoles, the progress display, and a config file with overrides as arguments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sparrow_core.errors import InputError

if TYPE_CHECKING:
    from sparrow_core.measure.progress import Progress

_FILE_WIDTH = 160
"""Columns when the output is a file or a pipe and COLUMNS is not set, so that tables are not cut at 80."""


def _console(*, stderr: bool) -> Console:
    terminal = Console(stderr=stderr, highlight=False)
    if terminal.is_terminal or "COLUMNS" in os.environ:
        return terminal
    return Console(stderr=stderr, highlight=False, width=_FILE_WIDTH)


console = _console(stderr=False)
error_console = _console(stderr=True)


def progress_display(quiet: bool) -> Progress:
    """Progress on standard error; none when ``quiet`` or where standard error is not a terminal."""
    from sparrow_core.measure.progress import Progress

    return Progress(None if quiet else error_console)


def split_arguments(arguments: list[str] | None) -> tuple[Path | None, list[str]]:
    """(config file or None, overrides): an argument with ``=`` is an override, one without is the YAML file.

    Raises InputError when more than one file is named.
    """
    files = [argument for argument in arguments or [] if "=" not in argument]
    overrides = [argument for argument in arguments or [] if "=" in argument]
    if len(files) > 1:
        raise InputError(
            f"{files[1]!r} is neither key=value nor the only config file ({files[0]!r} came first); "
            "give one YAML file and any number of key=value overrides"
        )
    return (Path(files[0]) if files else None), overrides
