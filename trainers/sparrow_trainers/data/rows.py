"""Prompts from rows with named columns, as JSONL, Parquet and Hugging Face datasets have them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import PromptExample, PromptSource


class RowsConfig(PluginConfig):
    """Which column holds what."""

    prompt_column: str = Field("prompt", min_length=1, description="text, or a list of {role, content} messages")
    id_column: str | None = Field(None, min_length=1, description="the prompts' names in logs; null counts them")
    field_columns: tuple[str, ...] | None = Field(None, description="columns rewards read; null takes all others")
    limit: int | None = Field(None, ge=1, description="take the first rows only")


class RowSource(PromptSource):
    """Base of sources whose examples are rows. ``name`` stands for the source in prompt ids and errors."""

    name: str
    row_config: RowsConfig

    @abstractmethod
    def row(self, index: int) -> Mapping[str, Any]:
        """The values of one row by column."""

    def place(self, index: int) -> str:
        """Where the row is, for prompt ids and errors."""
        return f"{self.name}:{index}"

    def check_columns(self, columns: Sequence[str], place: str) -> None:
        """Raises InputError when a configured column is missing."""
        config = self.row_config
        wanted = {"prompt_column": [config.prompt_column], "field_columns": list(config.field_columns or ())}
        wanted["id_column"] = [config.id_column] if config.id_column is not None else []
        for key, names in wanted.items():
            for name in names:
                if name not in columns:
                    close = get_close_matches(name, columns, n=1)
                    hint = f"; did you mean {close[0]!r}?" if close else ""
                    known = ", ".join(sorted(columns))
                    raise InputError(f"data.source.{key}={name!r} is no column of {place}, which has {known}{hint}")

    def __getitem__(self, index: int) -> PromptExample:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        config, row, place = self.row_config, self.row(index), self.place(index)
        self.check_columns(list(row), place)
        text, messages = _prompt(row[config.prompt_column], config.prompt_column, place)
        taken = {config.prompt_column, config.id_column}
        names = config.field_columns if config.field_columns is not None else [key for key in row if key not in taken]
        prompt_id = place if config.id_column is None else str(row[config.id_column])
        return PromptExample(prompt_id, text, messages, {name: row[name] for name in names})


def _prompt(value: Any, column: str, place: str) -> tuple[str | None, tuple[dict[str, str], ...] | None]:
    if isinstance(value, str) and value.strip():
        return value, None
    if isinstance(value, list) and value:
        return None, tuple(_message(message, column, place) for message in value)
    raise InputError(
        f"{place} has {column}={value!r:.80}; data.source.prompt_column must hold text or a list of messages, not empty"
    )


def _message(message: Any, column: str, place: str) -> dict[str, str]:
    if not isinstance(message, Mapping) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
        raise InputError(f"{place} has in {column} a message without text 'role' and 'content': {message!r:.80}")
    return {"role": message["role"], "content": message["content"]}
