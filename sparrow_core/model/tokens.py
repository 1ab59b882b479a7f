"""Tokenizer files of a Hugging Face directory, and the token ids that end a sequence, without loading transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparrow_core.errors import CheckpointError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def has_tokenizer(directory: Path) -> bool:
    return any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))


def read_json(path: Path) -> dict[str, Any]:
    """Raises CheckpointError when the file is not a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); copy the file again from its source") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}, not an object; copy it from its source")
    return value


def read_eos_ids(directory: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """Every id that the generation config, the model config or the tokenizer names as an end of sequence."""
    ids = set(_ids(config.get("eos_token_id")))
    generation = directory / "generation_config.json"
    if generation.is_file():
        ids.update(_ids(read_json(generation).get("eos_token_id")))
    ids.update(_tokenizer_eos(directory))
    return frozenset(ids)


def _ids(value: object) -> Iterator[int]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int):
            yield item


def _tokenizer_eos(directory: Path) -> Iterator[int]:
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return
    tokenizer_config = read_json(path)
    token = tokenizer_config.get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    if content is None:
        return
    added = {entry["content"]: int(key) for key, entry in tokenizer_config.get("added_tokens_decoder", {}).items()}
    if content not in added and (directory / "tokenizer.json").is_file():
        tokenizer = read_json(directory / "tokenizer.json")
        added = {entry["content"]: int(entry["id"]) for entry in tokenizer.get("added_tokens", [])}
    if content in added:
        yield added[content]
