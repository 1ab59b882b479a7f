from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from sparrow_core.errors import InputError
from tests.data.helpers import source_of

ROWS = [{"prompt": "one", "answer": 1, "tests": ["a"]}, {"prompt": "two", "answer": 2, "tests": []}]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def test_rows_become_examples_with_the_other_columns_as_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    source = source_of("parquet", path=path)
    assert len(source) == 2
    assert source[1].prompt_id == f"{path}:1"
    assert source[1].text == "two"
    assert dict(source[1].fields) == {"answer": 2, "tests": []}
    with pytest.raises(IndexError):
        source[2]


def test_messages_and_tests_keep_their_structure(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    tests = [{"input": "1", "output": "2"}]
    path = write(tmp_path / "a.parquet", [{"q": messages, "id": 7, "tests": tests, "rest": 2}])
    example = source_of("parquet", path=path, prompt_column="q", id_column="id", field_columns=["tests"])[0]
    assert example.messages == tuple(messages)
    assert example.prompt_id == "7"
    assert dict(example.fields) == {"tests": tests}


def test_a_directory_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", ROWS[1:])
    write(tmp_path / "a.parquet", ROWS[:1])
    (tmp_path / "notes.txt").write_text("not read")
    source = source_of("parquet", path=str(tmp_path))
    assert [source[n].text for n in range(len(source))] == ["one", "two"]
    assert len(source_of("parquet", path=str(tmp_path), limit=1)) == 1
    write(tmp_path / "c.parquet", [{"prompt": "three", "answer": 3}])
    with pytest.raises(
        InputError, match=r"c\.parquet has columns answer, prompt but .*a\.parquet has answer, prompt, tests"
    ):
        source_of("parquet", path=str(tmp_path))


def test_what_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(InputError, match=r"data\.source\.path='.*a\.parquet' is not a file or directory"):
        source_of("parquet", path=str(path))
    with pytest.raises(InputError, match=r"has no \.parquet files"):
        source_of("parquet", path=str(tmp_path))
    path.write_text("no Parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        source_of("parquet", path=str(path))
    pyarrow.parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), path)
    with pytest.raises(InputError, match="holds no rows"):
        source_of("parquet", path=str(path))


def test_a_missing_column_names_those_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    says = (
        r"prompt_column='promt' is no column of .*a\.parquet, which has answer, prompt, tests; did you mean 'prompt'\?"
    )
    with pytest.raises(InputError, match=says):
        source_of("parquet", path=path, prompt_column="promt")
    with pytest.raises(InputError, match=r"field_columns='gold' is no column"):
        source_of("parquet", path=path, field_columns=["answer", "gold"])


def test_a_row_without_a_prompt_is_named(tmp_path: Path) -> None:
    source = source_of("parquet", path=write(tmp_path / "a.parquet", [{"prompt": "x"}, {"prompt": None}]))
    with pytest.raises(InputError, match=r"a\.parquet:1 has prompt=None"):
        source[1]
