"""Writing a model as a Hugging Face directory."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file

from sparrow_core.errors import InputError
from sparrow_core.model import build
from sparrow_core.model.hf_config import ARCHITECTURES
from sparrow_core.model.language_model import LanguageModel
from sparrow_core.model.tokens import TOKENIZER_FILES
from sparrow_core.model.weights import INDEX_FILE

_COPIED_FILES = (*TOKENIZER_FILES, "generation_config.json")


def export_model(model: LanguageModel, directory: str | Path, *, max_shard_size: str | int = "5GB") -> Path:
    """Write config.json, safetensors weights, tokenizer files and generation_config.json; all appear at once.

    ``transformers.AutoModelForCausalLM`` loads the directory, and ``load_model`` gives back the same bits.
    Raises InputError when the directory is not empty or cannot be written.
    """
    target = Path(directory).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"output directory {str(target)!r} exists and is not empty; give a new one")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as work:
            finished = Path(work) / target.name
            finished.mkdir()
            _write(model, finished, max_shard_size)
            finished.replace(target)
    except OSError as error:
        raise InputError(
            f"output directory {str(target)!r} cannot be written ({error.strerror or error}); give another one"
        ) from error
    return target


def _write(model: LanguageModel, directory: Path, max_shard_size: str | int) -> None:
    state = {name: t.detach().contiguous() for name, t in hf_state_dict(model).items()}
    split = split_torch_state_dict_into_shards(state, max_shard_size=max_shard_size)
    for file, names in split.filename_to_tensors.items():
        save_file({name: state[name] for name in names}, directory / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        _write_json(directory / INDEX_FILE, index)
    _write_json(directory / "config.json", _config(model))
    for name in _COPIED_FILES:
        if model.directory is not None and (model.directory / name).is_file():
            shutil.copyfile(model.directory / name, directory / name)


def hf_state_dict(model: LanguageModel) -> dict[str, torch.Tensor]:
    """The weights under their Hugging Face names, sharing memory with the model."""
    state: dict[str, torch.Tensor] = build.adapter(model.module).to_hf(model.module.state_dict())
    return state


def _config(model: LanguageModel) -> dict[str, Any]:
    config = {key: value for key, value in model.config.items() if key not in ("torch_dtype", "_name_or_path")}
    config["architectures"] = [ARCHITECTURES[model.spec.model_type]]
    config["dtype"] = str(model.dtype).removeprefix("torch.")
    return config


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
