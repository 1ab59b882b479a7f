"""Prompts from a Python function."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import PromptExample, PromptSource
from sparrow_trainers.functions import import_callable


class FunctionSourceConfig(PluginConfig):
    type: str = "function"
    path: str = Field(min_length=1, description="pkg.module:name of a function that returns a list of PromptExample")
    arguments: dict[str, Any] = Field({}, description="its keyword arguments")


class FunctionSource(PromptSource):
    """What ``path(**arguments)`` returns. It must return the same at every call: every process makes one.

    Raises InputError when it cannot be imported or called, or does not return examples.
    """

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = FunctionSourceConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, FunctionSourceConfig)
        function = import_callable(config.path, "data.source.path")
        try:
            made = function(**config.arguments)
        except TypeError as error:
            raise InputError(
                f"data.source.arguments={config.arguments!r}: {config.path} refuses them: {error}"
            ) from error
        if not isinstance(made, list | tuple) or not made:
            raise InputError(f"data.source.path={config.path!r} returned {made!r:.80}; return a list of PromptExample")
        for index, example in enumerate(made):
            if not isinstance(example, PromptExample):
                raise InputError(
                    f"data.source.path={config.path!r} returned at {index} a {type(example).__name__}; "
                    "return sparrow_core.train_contracts.PromptExample"
                )
        self._examples: tuple[PromptExample, ...] = tuple(made)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> PromptExample:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        return self._examples[index]
