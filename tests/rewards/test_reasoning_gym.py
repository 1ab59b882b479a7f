"""The source's prompts and the reward together, on tasks whose answers need scorers of different kinds."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import PromptExample
from sparrow_trainers.rewards.reasoning_gym import ReasoningGymConfig, ReasoningGymReward
from tests.data.helpers import source_of
from tests.rewards.helpers import completion


@pytest.fixture(scope="module")
def example() -> PromptExample:
    return source_of("reasoning_gym", task="chain_sum", size=3, parameters={"min_terms": 2, "max_terms": 2})[1]


def score(text: str, fields: Any, **settings: Any) -> float:
    return ReasoningGymReward(ReasoningGymConfig(**settings)).score(completion(text, **fields))


@pytest.mark.parametrize("task", ["chain_sum", "leg_counting", "countdown", "sudoku"])
def test_a_tasks_own_answer_scores_one_and_another_less(task: str) -> None:
    source = source_of("reasoning_gym", task=task, size=2)
    for example in (source[0], source[1]):
        answer = example.fields["answer"]
        assert score(f"I think <answer>{answer}</answer>", example.fields) == 1.0
        assert score("<answer>not it</answer>", example.fields) < 1.0


def test_where_the_answer_stands_is_a_setting(example: PromptExample) -> None:
    answer, fields = example.fields["answer"], example.fields
    assert score(rf"\boxed{{{answer}}}", fields, answer_in="boxed") == 1.0
    assert score(f"thinking\n{answer}\n", fields, answer_in="last_line") == 1.0
    assert score(f" {answer}\n", fields, answer_in="all") == 1.0
    assert score(f"<a>{answer}</a>", fields, tag="a") == 1.0


@pytest.mark.parametrize(
    ("text", "answer_in"), [("5", "tag"), ("<answer>5", "tag"), ("5", "boxed"), (" ", "last_line")]
)
def test_no_answer_gets_its_own_reward(example: PromptExample, text: str, answer_in: str) -> None:
    assert score(text, example.fields, answer_in=answer_in, no_answer=-0.25) == -0.25


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"task": "chain_sum"}, "'entry' is no field of the prompt; its fields: task"),
        ({"task": "chain_sum", "entry": {"answer": "1"}}, "must be an entry of reasoning-gym, with answer and metadata"),
        ({"task": "chain_sums", "entry": {"answer": "1", "metadata": {}}}, "task='chain_sums' is no task .* did you mean 'chain_sum'"),
    ],
    ids=["no entry", "half an entry", "unknown task"],
)  # fmt: skip
def test_prompts_of_another_kind_are_an_error(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        score("<answer>1</answer>", fields)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(InputError, match=r"reasoning-gym is not installed; pip install 'sparrow-rollout\[tasks\]'"):
        ReasoningGymReward(ReasoningGymConfig())
