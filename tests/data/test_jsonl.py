from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparrow_core.errors import InputError
from tests.data.helpers import source_of

ROWS = [{"prompt": "one", "answer": 1, "tests": ["a"]}, {"prompt": "two", "answer": 2, "tests": []}]


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


def test_rows_become_examples_with_the_other_columns_as_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    source = source_of("jsonl", path=path)
    assert len(source) == 2
    assert source[1].prompt_id == f"{path}:2"
    assert source[1].text == "two"
    assert source[1].messages is None
    assert dict(source[1].fields) == {"answer": 2, "tests": []}


def test_messages_and_column_names(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi", "extra": "left out"}]
    path = write(tmp_path / "a.jsonl", [{"q": messages, "id": 7, "answer": 1, "rest": 2}])
    example = source_of("jsonl", path=path, prompt_column="q", id_column="id", field_columns=["answer"])[0]
    assert example.messages == ({"role": "user", "content": "hi"},)
    assert example.text is None
    assert example.prompt_id == "7"
    assert dict(example.fields) == {"answer": 1}


def test_blank_lines_keep_the_line_numbers_and_limit_takes_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"prompt": "x"}\n\n{"prompt": "y"}\nnot read\n')
    source = source_of("jsonl", path=str(path), limit=2)
    assert [source[n].prompt_id for n in range(2)] == [f"{path}:2", f"{path}:4"]
    with pytest.raises(IndexError):
        source[2]
    with pytest.raises(IndexError):
        source[-1]


@pytest.mark.parametrize(
    ("content", "settings", "says"),
    [
        (None, {}, r"data\.source\.path='.*' is not a file"),
        ("", {}, r"data\.source\.path='.*' holds no prompts"),
        ("\n \n", {}, "holds no prompts"),
        ("{", {}, r"a\.jsonl:1 is not valid JSON"),
        ('{"prompt": "x"}\n[1]', {}, r"a\.jsonl:2 is a JSON list"),
        ('{"promt": "x", "b": 1}', {}, r"data\.source\.prompt_column='prompt' is no column of .*:1, which has b, promt; did you mean 'promt'\?"),
        ('{"prompt": "x"}\n{"b": 1}', {}, r"is no column of .*:2, which has b$"),
        ('{"prompt": "x"}', {"field_columns": ["answer"]}, r"data\.source\.field_columns='answer' is no column"),
        ('{"prompt": "x"}', {"id_column": "key"}, r"data\.source\.id_column='key' is no column"),
        ("\udcff", {}, "is not UTF-8 text"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_at_the_start(
    tmp_path: Path, content: str | None, settings: dict[str, Any], says: str
) -> None:
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=says):
        source_of("jsonl", path=str(path), **settings)


@pytest.mark.parametrize("prompt", ["", "  ", None, 3, [], [{"role": "user"}], ["hi"]], ids=repr)
def test_a_prompt_that_is_neither_text_nor_messages_is_refused(tmp_path: Path, prompt: Any) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": prompt}])
    with pytest.raises(InputError, match=r"a\.jsonl:1 has "):
        source_of("jsonl", path=path)[0]


def test_missing_settings_name_their_key() -> None:
    with pytest.raises(InputError, match=r"source\.path is missing"):
        source_of("jsonl")
