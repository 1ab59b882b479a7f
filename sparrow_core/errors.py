"""Errors that a user can mend.

Every message names the field, the value that was given and what to give instead.
"""

from __future__ import annotations


class InputError(ValueError):
    """Bad input from the user: the command line prints it and exits with code 2."""


class PluginError(InputError):
    """A plugin is unknown, is defined twice or failed to load."""


class CheckpointError(InputError):
    """A model directory or file is missing, damaged or of a kind that is not supported."""


class OutOfPagesError(InputError):
    """The page pool cannot hold even one sequence of the requested length."""
