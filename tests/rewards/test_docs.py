"""The manual's YAML is valid, and it names every option of every reward and source that it describes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparrow_core import registry
from sparrow_core.config import validate
from sparrow_trainers.data import DataConfig
from sparrow_trainers.rewards import RewardsConfig

MANUAL = (Path(__file__).parents[2] / "docs" / "rewards-and-data.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", MANUAL, re.DOTALL | re.MULTILINE)
PLUGINS = [
    *(("sparrow.data", name) for name in ("function", "hf_dataset", "jsonl", "parquet", "reasoning_gym")),
    *(("sparrow.rewards", name) for name in ("code", "function", "math", "reasoning_gym")),
]


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_are_valid(block: str) -> None:
    parts = yaml.safe_load(block)
    assert parts
    assert parts.keys() <= {"data", "rewards"}
    if "data" in parts:
        validate(DataConfig, parts["data"])
    if "rewards" in parts:
        validate(RewardsConfig, parts["rewards"])


def test_every_plugin_has_an_example() -> None:
    parts = [yaml.safe_load(block) for block in BLOCKS]
    sources = {part["data"]["source"]["type"] for part in parts if "data" in part}
    rewards = {term if isinstance(term, str) else term["reward"]["type"]
               for part in parts if "rewards" in part for term in part["rewards"]["terms"]}  # fmt: skip
    assert sources == {name for group, name in PLUGINS if group == "sparrow.data"}
    assert rewards == {name for group, name in PLUGINS if group == "sparrow.rewards"}


@pytest.mark.parametrize(("group", "name"), PLUGINS)
def test_every_option_is_named(group: str, name: str) -> None:
    plugin: Any = registry.load(group, name)
    missing = [option for option in plugin.Config.model_fields if not re.search(rf"\b{option}\b", MANUAL)]
    assert not missing


@pytest.mark.parametrize("section", [DataConfig, RewardsConfig])
def test_every_key_of_the_sections_is_named(section: Any) -> None:
    assert not [key for key in section.model_fields if not re.search(rf"\b{key}\b", MANUAL)]
