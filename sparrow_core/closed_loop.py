"""The step that closes the loop: a policy takes in what a rollout saw."""

from __future__ import annotations

from sparrow_core.contracts import SparsityPolicy
from sparrow_core.errors import InputError, PluginError
from sparrow_core.mismatch import MismatchStream


def observe(policy: SparsityPolicy, stream: MismatchStream, *, name: str, where: str) -> None:
    """Hand a policy what a rollout saw. What it raises becomes a PluginError naming it and ``where``."""
    try:
        policy.observe(stream)
    except InputError:
        raise
    except Exception as error:
        raise PluginError(f"policy {name} failed in observe() at {where}: {type(error).__name__}: {error}") from error
