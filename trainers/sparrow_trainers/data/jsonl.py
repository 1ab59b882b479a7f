"""Prompts from a JSONL file: one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_trainers.data.rows import RowsConfig, RowSource


class JsonlConfig(RowsConfig):
    type: str = "jsonl"
    path: str = Field(min_length=1, description="a file of one JSON object per line")


class JsonlSource(RowSource):
    """Raises InputError when the file is missing, empty or not JSONL, or a row lacks a column."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = JsonlConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, JsonlConfig)
        self.row_config = config
        self.name = config.path
        self._rows = _read(Path(config.path), config.limit)
        for index, (_, row) in enumerate(self._rows):
            self.check_columns(list(row), self.place(index))

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, index: int) -> str:
        return f"{self.name}:{self._rows[index][0]}"

    def row(self, index: int) -> Mapping[str, Any]:
        return self._rows[index][1]


def _read(path: Path, limit: int | None) -> list[tuple[int, dict[str, Any]]]:
    """Line number and object of each non-empty line."""
    if not path.is_file():
        raise InputError(f"data.source.path={str(path)!r} is not a file; give a .jsonl file of prompts")
    rows: list[tuple[int, dict[str, Any]]] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if limit is not None and len(rows) == limit:
                    break
                if line.strip():
                    rows.append((number, _object(f"{path}:{number}", line)))
    except UnicodeDecodeError as error:
        raise InputError(f"data.source.path={str(path)!r} is not UTF-8 text: {error}") from error
    if not rows:
        raise InputError(f"data.source.path={str(path)!r} holds no prompts; give at least one non-empty line")
    return rows


def _object(place: str, line: str) -> dict[str, Any]:
    try:
        row: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{place} is not valid JSON: {error}; write one JSON object per line") from error
    if not isinstance(row, dict):
        raise InputError(f"{place} is a JSON {type(row).__name__}; write one JSON object per line")
    return row
