from __future__ import annotations

import sys
from typing import Any

import pytest

from sparrow_core.errors import InputError
from sparrow_trainers.rewards.math import MathConfig, MathReward
from tests.rewards.helpers import completion


def score(text: str, answer: Any, **settings: Any) -> float:
    return MathReward(MathConfig(**settings)).score(completion(text, answer=answer))


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", True),
        (r"\boxed{1/2}", r"\frac12", True),
        (r"\boxed{2} then \boxed{3}", "3", True),
        (r"\boxed{3} then \boxed{2}", "3", False),
        (r"\boxed{-3}", -3, True),
        (r"\boxed{1,000}", "1000", True),
        (r"\boxed{(1, 2)}", "(1,2)", True),
        (r"\boxed{(2, 1)}", "(1,2)", False),
        (r"\boxed{\{2, 1\}}", r"\{1,2\}", True),
        (r"\boxed{x = 5}", "5", True),
        (r"\boxed{5}", r"so it is \boxed{5}", True),
        ("The answer is $4$.", "4", True),
        ("The answer is 4", "5", False),
        ("nothing of the kind", "4", False),
        ("", "4", False),
        (r"\boxed{}", "4", False),
        (r"\boxed{\frac{1}", "1", False),
    ],
)
def test_answers_are_compared_as_mathematics(text: str, answer: Any, right: bool) -> None:
    assert score(text, answer) == float(right)


def test_rewards_and_the_box_are_settings() -> None:
    assert score(r"\boxed{4}", "4", correct=2, wrong=-1) == 2
    assert score(r"\boxed{5}", "4", correct=2, wrong=-1) == -1
    assert score("The answer is 4", "4", boxed_only=True) == 0
    assert MathReward(MathConfig(answer_field="gold")).score(completion(r"\boxed{4}", gold=4)) == 1


def test_a_comparison_past_its_limit_is_wrong() -> None:
    assert score(r"\boxed{9^{9^{9^{9}}}}", "1", parse_limit_s=1) == 0


@pytest.mark.parametrize("answer", ["", "  "])
def test_a_prompt_without_a_readable_answer_is_an_error(answer: str) -> None:
    with pytest.raises(InputError, match=r"the prompt's answer='.*' cannot be read as mathematics"):
        score(r"\boxed{4}", answer)


def test_a_prompt_without_the_field_names_its_fields() -> None:
    with pytest.raises(InputError, match=r"reward\.answer_field='answer' is no field of the prompt; its fields: gold"):
        MathReward(MathConfig()).score(completion("4", gold=4))


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(InputError, match=r"math-verify is not installed; pip install 'sparrow-rollout\[tasks\]'"):
        MathReward(MathConfig())
