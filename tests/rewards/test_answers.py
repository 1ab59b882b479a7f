"""Where an answer is found in a text; hostile texts are read in one pass."""

from __future__ import annotations

import pytest

from sparrow_core.errors import InputError
from sparrow_trainers.rewards.answers import last_boxed, last_code_block, last_line, last_tagged, prompt_field
from tests.rewards.helpers import completion


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{3}", "3"),
        (r"\boxed{1} and \boxed {2}", "2"),
        (r"\boxed{\frac{1}{2}} rest}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"{{ \boxed{4}", "4"),
        (r"} \boxed{4}", "4"),
        (r"\boxed{4} then \boxed{5", "4"),
        (r"\boxed{5", None),
        (r"\boxed{{5}", None),
        (r"\boxed{}", ""),
        (r"\\boxed{5}", None),
        ("no box", None),
        (r"\boxed{" * 50_000, None),
        (r"\boxed{" * 50_000 + "x}", "x"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_the_last_closed_box_is_the_answer(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx\n```\n", "x\n"),
        ("a\n  ``` Python3 title\nx\n  ```  \n", "x\n"),
        ("```py\n1\n```\n```py\n2\n```\n", "2\n"),
        ("```py\n1\n```\n```bash\n2\n```\n", "1\n"),
        ("```py\n1\n```\n```py\n2\n", "1\n"),
        ("```python\ns = '```py'\n```\n", "s = '```py'\n"),
        ("```python\n```text\n```\n", "```text\n"),
        ("```python\r\nx\r\n```\r\n", "x\r\n"),
        ("```python\n```", ""),
        ("```x = 1```\n```py\n2\n```\n", "2\n"),
        ("```python\nx", None),
        ("print(1)", None),
        ("```py x\n" * 50_000, None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_the_last_closed_block_is_the_answer(text: str, answer: str | None) -> None:
    assert last_code_block(text) == answer


def test_tags_and_lines() -> None:
    assert last_tagged("<answer>1</answer> <answer> 2 </answer> x", "answer") == "2"
    assert last_tagged("<answer>1</answer> <answer>2", "answer") is None
    assert last_tagged("</answer>", "answer") is None
    assert last_line("a\n b \n\n") == "b"
    assert last_line(" \n") is None


def test_a_missing_field_names_those_there_are() -> None:
    assert prompt_field(completion("x", answer=3), "answer", "reward.answer_field") == 3
    with pytest.raises(InputError, match=r"reward\.answer_field='anser' is no field of the prompt; its fields: a, b"):
        prompt_field(completion("x", b=1, a=2), "anser", "reward.answer_field")
    with pytest.raises(InputError, match="its fields: none"):
        prompt_field(completion("x"), "answer", "reward.answer_field")
