"""Functions that a configuration names by their path."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from sparrow_core.errors import InputError


def import_callable(path: str, key: str) -> Callable[..., Any]:
    """The callable at ``pkg.module:name``. ``key`` is the configuration's, for errors.

    Raises InputError when the module cannot be imported or has no such callable.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InputError(f"{key}={path!r} must be a path like pkg.module:name")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise InputError(
            f"{key}={path!r}: importing {module_name} failed: {type(error).__name__}: {error}; "
            "mend the module, or run where it can be imported"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            close = get_close_matches(part, dir(found), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InputError(f"{key}={path!r}: {module_name} has no {name!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{key}={path!r} is a {type(found).__name__}, not a function")
    result: Callable[..., Any] = found
    return result
