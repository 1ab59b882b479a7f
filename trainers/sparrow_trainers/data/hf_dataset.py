"""Prompts from a Hugging Face dataset, by its name or from a local directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_trainers.data.rows import RowsConfig, RowSource


class HfDatasetConfig(RowsConfig):
    type: str = "hf_dataset"
    name: str = Field(min_length=1, description="a dataset's name, or a directory (of save_to_disk or of data files)")
    subset: str | None = Field(None, min_length=1, description="the dataset's configuration")
    split: str = Field("train", min_length=1, description="also slices, such as train[:1000]")
    revision: str | None = Field(None, min_length=1, description="commit or tag of the dataset")


class HfDatasetSource(RowSource):
    """Raises InputError when the dataset, its subset or split cannot be loaded, or a column is missing."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = HfDatasetConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, HfDatasetConfig)
        self.row_config = config
        self.name = f"{config.name}/{config.split}"
        self._data = _load(config)
        self._length = len(self._data) if config.limit is None else min(config.limit, len(self._data))
        if self._length == 0:
            raise InputError(f"data.source.split={config.split!r} of {config.name} holds no rows; give another split")
        self.check_columns(self._data.column_names, self.name)

    def __len__(self) -> int:
        return self._length

    def row(self, index: int) -> Mapping[str, Any]:
        row: dict[str, Any] = self._data[index]
        return row


def _load(config: HfDatasetConfig) -> Any:
    import datasets

    path = Path(config.name).expanduser()
    if config.name.startswith(("/", ".", "~")) and not path.is_dir():
        raise InputError(f"data.source.name={config.name!r} is not a directory; give one, or a dataset's name")
    try:
        if _is_saved(path):
            return _split_of(datasets.load_from_disk(str(path)), config)
        name = str(path) if path.is_dir() else config.name
        return datasets.load_dataset(name, config.subset, split=config.split, revision=config.revision)
    except InputError:
        raise
    except Exception as error:
        # The library raises many kinds, those of its downloads among them.
        raise InputError(
            f"data.source.name={config.name!r} (subset={config.subset}, split={config.split!r}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def _is_saved(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _split_of(saved: Any, config: HfDatasetConfig) -> Any:
    """Rows of ``config.split``, which may slice and add splits; a single dataset without a split's name is train."""
    import datasets

    if config.subset is not None or config.revision is not None:
        raise InputError(f"data.source.subset and revision mean nothing for the saved dataset {config.name}; leave out")
    splits: dict[str, Any] = saved if isinstance(saved, dict) else {str(saved.split or "train"): saved}
    lengths = {name: len(rows) for name, rows in splits.items()}
    try:
        parts = datasets.ReadInstruction.from_spec(config.split).to_absolute(lengths)
    except (AssertionError, ValueError) as error:
        known = ", ".join(f"{name} ({length} rows)" for name, length in lengths.items())
        raise InputError(
            f"data.source.split={config.split!r} is no split or slice of {config.name}, which has {known}: {error}"
        ) from error
    return datasets.concatenate_datasets([splits[part.splitname].select(range(part.from_, part.to)) for part in parts])
