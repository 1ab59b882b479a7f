"""A Python function as a reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Completion, Reward
from sparrow_trainers.functions import import_callable


class FunctionConfig(PluginConfig):
    type: str = "function"
    path: str = Field(pattern=r"^[\w.]+:[\w.]+$", description="pkg.module:name of a function that takes a Completion")
    arguments: dict[str, Any] = Field({}, description="keyword arguments of every call")


class FunctionReward(Reward):
    """``path(completion, **arguments)``. Raises InputError when the function cannot be imported or called."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = FunctionConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, FunctionConfig)
        self._function: Callable[..., float] = import_callable(config.path, "reward.path")
        self._arguments = config.arguments

    def score(self, completion: Completion) -> float:
        return self._function(completion, **self._arguments)
