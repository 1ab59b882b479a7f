"""Answers that are sequences of words, scored by how far they are right."""

from __future__ import annotations

from itertools import takewhile
from typing import ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.train_contracts import Completion, Reward
from sparrow_trainers.rewards.answers import prompt_field


class LeadingWordsConfig(PluginConfig):
    type: str = "leading_words"
    field: str = Field("answer", min_length=1, description="the prompt's field that holds the right words")


class LeadingWords(Reward):
    """Right words before the first mistake, as a share of the words of the prompt's ``field`` and its end.

    The end is right when the response stops after the last word: only the whole answer, ended, gives 1.
    Raises InputError in ``score`` when the prompt has no such field.
    """

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = LeadingWordsConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, LeadingWordsConfig)
        self._field = config.field

    def score(self, completion: Completion) -> float:
        wanted = str(prompt_field(completion, self._field, "reward.field")).split()
        given = completion.text.split()
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, given, strict=False)))
        ended = given == wanted and completion.finish_reason == "stop"
        return (right + ended) / (len(wanted) + 1)
