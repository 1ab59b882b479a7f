"""Prompts from a Parquet file, or a directory of Parquet files in the order of their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_trainers.data.rows import RowsConfig, RowSource


class ParquetConfig(RowsConfig):
    type: str = "parquet"
    path: str = Field(min_length=1, description="a .parquet file or a directory of them")


class ParquetSource(RowSource):
    """Raises InputError when the file is missing, empty or not Parquet, or a column is missing."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = ParquetConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, ParquetConfig)
        self.row_config = config
        self.name = config.path
        self._table = _read(Path(config.path))
        if config.limit is not None:
            self._table = self._table.slice(0, config.limit)
        self.check_columns(self._table.column_names, config.path)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def row(self, index: int) -> Mapping[str, Any]:
        row: dict[str, Any] = self._table.slice(index, 1).to_pylist()[0]
        return row


def _read(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        what = "has no .parquet files" if path.is_dir() else "is not a file or directory"
        raise InputError(f"data.source.path={str(path)!r} {what}; give a .parquet file or a directory of them")
    try:
        tables = [pyarrow.parquet.read_table(file) for file in files]
        for file, each in zip(files, tables, strict=True):
            if set(each.column_names) != set(tables[0].column_names):
                raise InputError(
                    f"{file} has columns {', '.join(sorted(each.column_names))} but {files[0]} has "
                    f"{', '.join(sorted(tables[0].column_names))}; files of one data.source.path must have the same"
                )
        table = pyarrow.concat_tables(tables, promote_options="permissive")
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"data.source.path={str(path)!r} cannot be read as Parquet: {error}") from error
    if table.num_rows == 0:
        raise InputError(f"data.source.path={str(path)!r} holds no rows; give at least one")
    return table
