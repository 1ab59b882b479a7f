"""Answers to reasoning-gym's tasks, scored by the task's own scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Completion, Reward
from sparrow_trainers.reasoning_gym_tasks import check_task, library
from sparrow_trainers.rewards.answers import last_boxed, last_line, last_tagged, prompt_field


class ReasoningGymConfig(PluginConfig):
    type: str = "reasoning_gym"
    answer_in: Literal["tag", "boxed", "last_line", "all"] = Field("tag", description="where the answer stands")
    tag: str = Field("answer", pattern=r"^\w+$", description="with answer_in=tag: <tag>...</tag>, the last one")
    no_answer: float = Field(0.0, description="the reward of a completion without an answer")


class ReasoningGymReward(Reward):
    """The scorer of the prompt's field ``task`` on the answer and the prompt's field ``entry``.

    Both fields come with the ``reasoning_gym`` source. Raises InputError when reasoning-gym is not installed, and in
    ``score`` when a field is missing or the task is unknown.
    """

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = ReasoningGymConfig
    preload: ClassVar[tuple[str, ...]] = ("reasoning_gym",)

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, ReasoningGymConfig)
        self._settings = config
        self._library = library()
        self._scorers: dict[str, Callable[[str, dict[str, Any]], float]] = {}

    def score(self, completion: Completion) -> float:
        task = prompt_field(completion, "task", "the field of reasoning_gym")
        entry = prompt_field(completion, "entry", "the field of reasoning_gym")
        if not isinstance(entry, Mapping) or not {"answer", "metadata"} <= set(entry):
            raise InputError("the prompt's field entry must be an entry of reasoning-gym, with answer and metadata")
        answer = self._answer(completion.text)
        if answer is None:
            return self._settings.no_answer
        return self._scorer(str(task))(answer, dict(entry))

    def _answer(self, text: str) -> str | None:
        match self._settings.answer_in:
            case "tag":
                return last_tagged(text, self._settings.tag)
            case "boxed":
                return last_boxed(text)
            case "last_line":
                return last_line(text)
            case "all":
                return text.strip()

    def _scorer(self, task: str) -> Callable[[str, dict[str, Any]], float]:
        if task not in self._scorers:
            check_task(task, "the prompt's field task")
            self._scorers[task] = self._library.get_score_answer_fn(task)
        return self._scorers[task]
