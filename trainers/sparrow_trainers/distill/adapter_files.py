"""Adapters on disk, in PEFT's layout: adapter_config.json, adapter_model.safetensors and a model card."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sparrow_core.errors import CheckpointError, InputError
from sparrow_core.model import LanguageModel
from sparrow_trainers.distill.adapter import TARGETS, AdapterConfig, LoraAdapter

ADAPTER_FOLDER = "adapter"
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model.model.layers"


def save_adapter(adapter: LoraAdapter, model: LanguageModel, directory: str | Path) -> Path:
    """Write the three files; all appear at once. ``peft.PeftModel.from_pretrained`` loads the directory.

    Raises InputError when the directory exists and is not empty, or cannot be written.
    """
    adapter.check_fits(model)
    target = Path(directory).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"adapter directory {str(target)!r} exists and is not empty; give a new one")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as work:
            finished = Path(work) / target.name
            finished.mkdir()
            _write(adapter, model, finished)
            finished.replace(target)
    except OSError as error:
        raise InputError(
            f"adapter directory {str(target)!r} cannot be written ({error.strerror or error}); give another one"
        ) from error
    return target


def replace_adapter(adapter: LoraAdapter, model: LanguageModel, output: Path) -> None:
    """Write the adapter as ``output/adapter``, in place of an earlier one. Raises InputError as ``save_adapter``."""
    target = output / ADAPTER_FOLDER
    with tempfile.TemporaryDirectory(prefix=".adapter.", dir=output) as work:
        finished = save_adapter(adapter, model, Path(work) / ADAPTER_FOLDER)
        if target.exists():
            shutil.rmtree(target)
        finished.replace(target)


def _write(adapter: LoraAdapter, model: LanguageModel, directory: Path) -> None:
    from peft import LoraConfig, TaskType

    config = adapter.config
    base = model.name if model.directory is None else str(model.directory)
    LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.target_modules),
        lora_dropout=0.0,
        bias="none",
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=base,
        inference_mode=True,
    ).save_pretrained(str(directory))
    metadata = {"format": "pt", "model_type": adapter.model_type, "num_layers": str(adapter.num_layers)}
    save_file(_tensors(adapter), directory / WEIGHTS_FILE, metadata=metadata)
    (directory / "README.md").write_text(_model_card(adapter, base), encoding="utf-8")


def _tensors(adapter: LoraAdapter) -> dict[str, torch.Tensor]:
    tensors = {}
    for layer, name, update in adapter.items():
        for part in ("lora_A", "lora_B"):
            tensors[_tensor_name(layer, name, part)] = getattr(update, part).detach().cpu().contiguous()
    return tensors


def _tensor_name(layer: int, target: str, part: str) -> str:
    return f"{_PREFIX}.{layer}.{TARGETS[target].theirs}.{part}.weight"


def _model_card(adapter: LoraAdapter, base: str) -> str:
    config = adapter.config
    header = {"base_model": base, "library_name": "peft", "tags": ["lora", "sparse-attention", "sparrow"]}
    lines = [f"{key}: {json.dumps(value)}" for key, value in header.items()]
    return "\n".join(
        [
            "---",
            *lines,
            "---",
            "",
            "# Adapter for sparse rollouts",
            "",
            f"A LoRA adapter (rank {config.rank}, alpha {config.alpha:g}, on {', '.join(config.target_modules)}) that "
            f"draws block-sparse attention of `{base}` to its dense distribution.",
            "It is meant for generation with sparse attention; the dense model is used without it.",
            "",
        ]
    )


def load_adapter(model: LanguageModel, directory: str | Path) -> LoraAdapter:
    """The adapter of ``directory`` for ``model``.

    Raises CheckpointError when a file is missing or damaged, or holds what we do not support, InputError when the
    adapter is of another model.
    """
    folder = Path(directory).expanduser()
    adapter_config = _read_config(folder / CONFIG_FILE)
    tensors, metadata = _read_tensors(folder / WEIGHTS_FILE)
    if metadata.get("model_type", model.spec.model_type) != model.spec.model_type:
        raise InputError(
            f"adapter {str(folder)!r} is of a {metadata['model_type']} model but {model.name} is "
            f"{model.spec.model_type}; give the model it was trained on"
        )
    adapter = LoraAdapter(model, adapter_config)
    _fill(adapter, tensors, folder, model)
    return adapter


def _fill(adapter: LoraAdapter, tensors: dict[str, torch.Tensor], folder: Path, model: LanguageModel) -> None:
    expected = {
        _tensor_name(layer, name, part): getattr(update, part)
        for layer, name, update in adapter.items()
        for part in ("lora_A", "lora_B")
    }
    odd = sorted(expected.keys() ^ tensors.keys())
    if odd:
        where = "lacks" if odd[0] in expected else "holds"
        raise InputError(
            f"adapter {str(folder)!r} {where} {odd[0]}, unlike one of {model.name} "
            f"({adapter.num_layers} layers); give the model it was trained on"
        )
    with torch.no_grad():
        for name, parameter in expected.items():
            if tensors[name].shape != parameter.shape:
                raise InputError(
                    f"adapter {str(folder)!r}: {name} is {tuple(tensors[name].shape)} but {model.name} needs "
                    f"{tuple(parameter.shape)}; give the model it was trained on"
                )
            parameter.copy_(tensors[name])


def _read_config(path: Path) -> AdapterConfig:
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        targets = stored["target_modules"]
        rank, alpha = int(stored["r"]), float(stored["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{str(path)!r} is missing or damaged ({error}); give an adapter's directory") from error
    plain = {"use_dora": False, "use_rslora": False, "bias": "none", "modules_to_save": None, "rank_pattern": {}}
    for key, value in plain.items():
        if stored.get(key, value) not in (value, None):
            raise CheckpointError(f"{str(path)!r} has {key}={stored[key]!r}; only plain LoRA ({key}={value!r}) is read")
    if not isinstance(targets, list) or not set(targets) <= set(TARGETS):
        raise CheckpointError(
            f"{str(path)!r} has target_modules={targets!r}; known are {', '.join(TARGETS)}, given as a list"
        )
    ordered = tuple(name for name in TARGETS if name in targets)
    return AdapterConfig(rank=rank, alpha=alpha, target_modules=ordered)


def _read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{str(path)!r} is missing or damaged ({error}); give an adapter's directory") from error
