"""Mathematical answers, compared by math-verify, which needs a main thread: it stops long parses by signals."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Completion, Reward
from sparrow_trainers.rewards.answers import last_boxed, prompt_field


class MathConfig(PluginConfig):
    type: str = "math"
    answer_field: str = Field("answer", min_length=1, description="the prompt's field with the right answer")
    correct: float = Field(1.0, description="the reward of a right answer")
    wrong: float = Field(0.0, description="the reward of any other")
    boxed_only: bool = Field(False, description=r"an answer outside of \boxed{} is wrong")
    parse_limit_s: int = Field(2, ge=1, description="for reading and for comparing an answer; past it, it is wrong")


class MathReward(Reward):
    r"""``correct`` when the completion's answer equals the prompt's, as sympy sees it.

    The answer is what stands in the last ``\boxed{}``; without one, what math-verify finds in the text. Raises
    InputError when math-verify is not installed, and in ``score`` when the prompt has no answer that can be read.
    """

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = MathConfig
    preload: ClassVar[tuple[str, ...]] = ("math_verify",)

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, MathConfig)
        self._settings = config
        try:
            import math_verify
        except ModuleNotFoundError as error:
            raise InputError("math-verify is not installed; pip install 'sparrow-rollout[tasks]'") from error
        self._library: Any = math_verify

    def score(self, completion: Completion) -> float:
        settings = self._settings
        gold = self._gold(completion)
        boxed = last_boxed(completion.text)
        if boxed is None and settings.boxed_only:
            return settings.wrong
        answer = self._parse(completion.text if boxed is None else rf"\boxed{{{boxed}}}")
        right = self._library.verify(gold, answer, timeout_seconds=settings.parse_limit_s)
        return settings.correct if right else settings.wrong

    def _gold(self, completion: Completion) -> Any:
        name = self._settings.answer_field
        text = str(prompt_field(completion, name, "reward.answer_field"))
        gold = self._parse(text if r"\boxed" in text else rf"\boxed{{{text}}}")
        if not gold:
            raise InputError(f"the prompt's {name}={text!r:.80} cannot be read as mathematics; mend the data")
        return gold

    def _parse(self, text: str) -> Any:
        return self._library.parse(text, parsing_timeout=self._settings.parse_limit_s)
