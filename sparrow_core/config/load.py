"""From a YAML file and overrides to a checked configuration, and back to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from sparrow_core.config import yaml_text
from sparrow_core.config.messages import input_error
from sparrow_core.config.models import RunConfig
from sparrow_core.config.overrides import apply_overrides
from sparrow_core.errors import InputError

Root = TypeVar("Root", bound=BaseModel)

CONFIG_FILE = "config.yaml"


def load_config(path: str | Path | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a rollout or measurement: defaults, then the file, then ``key=value`` overrides.

    Raises InputError naming every wrong key, the value given and what is allowed.
    """
    return load_as(RunConfig, path, overrides)


def load_as(root: type[Root], path: str | Path | None = None, overrides: Sequence[str] = ()) -> Root:
    """``load_config`` for another root model (a ``Section``)."""
    data = {} if path is None else read_yaml(path)
    source = "configuration" if path is None else str(path)
    return validate(root, apply_overrides(root, data, overrides), source)


def validate(root: type[Root], data: Mapping[str, Any], source: str = "configuration") -> Root:
    """``data`` as a ``root``. Raises InputError; ``source`` opens its message."""
    try:
        return root.model_validate(data)
    except ValidationError as error:
        raise input_error(error, root, data, source) from error


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Raises InputError when the file is missing, is not YAML, or is not a mapping."""
    try:
        data = yaml_text.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"config file {str(path)!r} cannot be read: {error}; give a YAML file") from error
    except yaml.YAMLError as error:
        raise InputError(f"config file {str(path)!r} is not YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InputError(f"config file {str(path)!r} must be a mapping of sections, not {data!r:.80}")
    return data


def resolved(config: BaseModel) -> dict[str, Any]:
    """Every key with its value, as JSON and YAML types; ``validate`` of it gives an equal configuration."""
    return config.model_dump(mode="json")


def save_config(config: BaseModel, directory: str | Path) -> Path:
    """Write ``directory/config.yaml`` with every key resolved, making the directory. Raises InputError."""
    path = Path(directory) / CONFIG_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml_text.dump(resolved(config)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"output={str(directory)!r} cannot be written: {error}; give another directory") from error
    return path
