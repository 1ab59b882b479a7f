from __future__ import annotations

from typing import Any

import pytest

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import PromptExample
from tests.data.helpers import source_of


def numbers(count: int, base: int = 10) -> list[PromptExample]:
    return [PromptExample(f"n{n}", text=f"{n} in base {base}?", fields={"answer": n}) for n in range(count)]


def texts() -> list[str]:
    return ["a"]


def of(name: str, **settings: Any) -> Any:
    return source_of("function", path=f"{__name__}:{name}", **settings)


def test_examples_are_what_the_function_returns() -> None:
    source = of("numbers", arguments={"count": 3, "base": 2})
    assert len(source) == 3
    assert source[2] == PromptExample("n2", text="2 in base 2?", fields={"answer": 2})
    with pytest.raises(IndexError):
        source[3]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("number", {}, r"data\.source\.path='.*:number': .* has no 'number'; did you mean 'numbers'\?"),
        ("numbers", {"size": 3}, r"data\.source\.arguments=\{'size': 3\}: .* refuses them"),
        ("numbers", {"count": 0}, r"returned \[\]; return a list of PromptExample"),
        ("texts", {}, "returned at 0 a str; return sparrow_core.train_contracts.PromptExample"),
        ("__name__", {}, "is a str, not a function"),
    ],
)
def test_what_gives_no_examples_is_refused(name: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        of(name, arguments=arguments)


def test_paths_that_cannot_be_imported_are_named() -> None:
    with pytest.raises(InputError, match=r"data\.source\.path='nowhere\.at_all:f': importing nowhere\.at_all failed"):
        source_of("function", path="nowhere.at_all:f")
    with pytest.raises(InputError, match=r"must be a path like pkg\.module:name"):
        source_of("function", path="nowhere")
