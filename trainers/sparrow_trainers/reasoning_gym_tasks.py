"""reasoning-gym as the prompt source and the reward see it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from sparrow_core.errors import InputError

_REFUSED = {"composite": "name one task; a mix is one source per task"}


def library() -> Any:
    """The package. Raises InputError when it is not installed."""
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise InputError("reasoning-gym is not installed; pip install 'sparrow-rollout[tasks]'") from error
    return reasoning_gym


def check_task(name: str, key: str) -> None:
    """Raises InputError, with the closest name, for a task that reasoning-gym does not have."""
    from reasoning_gym.factory import DATASETS

    if name in _REFUSED:
        raise InputError(f"{key}={name!r} cannot be used: {_REFUSED[name]}")
    if name not in DATASETS:
        close = get_close_matches(name, sorted(DATASETS), n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}?" if close else "sorted(reasoning_gym.factory.DATASETS) lists them"
        raise InputError(f"{key}={name!r} is no task of reasoning-gym; {hint}")


def create_task(name: str, size: int, seed: int, parameters: Mapping[str, Any]) -> Any:
    """The task's dataset. Raises InputError for an unknown task, a wrong parameter or a value it refuses."""
    package = library()
    check_task(name, "data.source.task")
    from reasoning_gym.factory import DATASETS

    known = sorted(set(DATASETS[name][1].__dataclass_fields__) - {"size", "seed"})
    for parameter in parameters:
        if parameter not in known:
            raise InputError(
                f"data.source.parameters has {parameter!r}, which {name} does not know; it has {', '.join(known)}"
            )
    try:
        return package.create_dataset(name, size=size, seed=seed, **parameters)
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(f"data.source.parameters={dict(parameters)!r} is refused by {name}: {error}") from error
