"""Datasets of local directories only: nothing is asked of the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from sparrow_core.errors import InputError
from tests.data.helpers import source_of


def rows(count: int) -> datasets.Dataset:
    return datasets.Dataset.from_list([{"prompt": f"p{n}", "answer": n} for n in range(count)])


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """Of save_to_disk, with two splits."""
    datasets.DatasetDict({"train": rows(4), "test": rows(2)}).save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


def texts(**settings: Any) -> list[str | None]:
    source = source_of("hf_dataset", **settings)
    return [source[n].text for n in range(len(source))]


def test_a_saved_dataset_gives_the_split_that_is_asked_for(saved: str) -> None:
    source = source_of("hf_dataset", name=saved, split="test")
    assert source[1].prompt_id == f"{saved}/test:1"
    assert dict(source[1].fields) == {"answer": 1}
    assert texts(name=saved) == ["p0", "p1", "p2", "p3"]
    assert texts(name=saved, split="train[1:3]") == ["p1", "p2"]
    assert texts(name=saved, split="train[50%:]+test[:1]") == ["p2", "p3", "p0"]
    assert texts(name=saved, limit=1) == ["p0"]


def test_a_single_saved_dataset_is_train(tmp_path: Path) -> None:
    rows(2).save_to_disk(tmp_path / "one")
    assert texts(name=str(tmp_path / "one")) == ["p0", "p1"]
    with pytest.raises(InputError, match=r"split='test' is no split or slice of .*, which has train \(2 rows\)"):
        source_of("hf_dataset", name=str(tmp_path / "one"), split="test")


def test_a_directory_of_data_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "files"
    folder.mkdir()
    lines = [{"messages": [{"role": "user", "content": "hi"}], "tests": [{"input": "1", "output": "2"}]}]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    example = source_of("hf_dataset", name=str(folder), prompt_column="messages")[0]
    assert example.messages == ({"role": "user", "content": "hi"},)
    assert dict(example.fields) == {"tests": [{"input": "1", "output": "2"}]}
    with pytest.raises(
        InputError, match=r"data\.source\.name='.*files' \(subset=None, split='test'\) cannot be loaded"
    ):
        source_of("hf_dataset", name=str(folder), split="test")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"split": "dev"}, r"split='dev' is no split or slice of .*saved, which has train \(4 rows\), test \(2 rows\)"),
        ({"split": "train[1:"}, "is no split or slice"),
        ({"split": "train[:0]"}, r"split='train\[:0\]' of .* holds no rows"),
        ({"subset": "main"}, "subset and revision mean nothing for the saved dataset"),
        ({"prompt_column": "question"}, r"prompt_column='question' is no column of .*saved/train, which has answer, prompt$"),
        ({"id_column": "promt"}, "id_column='promt' is no column of .*; did you mean 'prompt'"),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_dataset_does_not_have_is_refused(saved: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        source_of("hf_dataset", name=saved, **settings)


@pytest.mark.parametrize("name", ["/nowhere/data", "./nowhere", "~/nowhere-at-all"])
def test_a_missing_directory_is_not_looked_for_elsewhere(name: str) -> None:
    with pytest.raises(InputError, match=r"data\.source\.name='.*nowhere.*' is not a directory"):
        source_of("hf_dataset", name=name)
