"""Small random checkpoints, written by transformers, and the real model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_helpers import small_config, transformers_model

from sparrow_core.model import LanguageModel, load_model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """``checkpoint(**config changes)`` writes a small random checkpoint and gives its directory."""

    def write(model_type: str = "llama", name: str = "checkpoint", shard: str = "5GB", **changes: Any) -> Path:
        directory = tmp_path / name
        transformers_model(small_config(model_type, **changes)).save_pretrained(directory, max_shard_size=shard)
        return directory

    return write


@pytest.fixture(scope="session")
def smollm2() -> LanguageModel:
    return load_model("smollm2")
