"""Prompts of a reasoning-gym task, generated from a seed."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import PromptExample, PromptSource
from sparrow_trainers.reasoning_gym_tasks import create_task


class ReasoningGymSourceConfig(PluginConfig):
    type: str = "reasoning_gym"
    task: str = Field(min_length=1, description="a task of reasoning-gym, such as chain_sum")
    parameters: dict[str, Any] = Field({}, description="of the task's config, such as min_terms")
    size: int = Field(1000, ge=1, description="number of prompts")
    seed: int = Field(0, ge=0, description="of the generated prompts")
    suffix: str = Field("", description="text after every question, such as how to write the answer")


class ReasoningGymSource(PromptSource):
    """The task's questions; fields ``task`` and ``entry`` are what the ``reasoning_gym`` reward reads."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = ReasoningGymSourceConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, ReasoningGymSourceConfig)
        self._settings = config
        self._task = create_task(config.task, config.size, config.seed, config.parameters)

    def __len__(self) -> int:
        return self._settings.size

    def __getitem__(self, index: int) -> PromptExample:
        settings = self._settings
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        entry = self._task[index]
        text = entry["question"] + settings.suffix
        fields = {"task": settings.task, "entry": entry, "answer": entry["answer"]}
        return PromptExample(f"{settings.task}:{settings.seed}:{index}", text=text, fields=fields)
