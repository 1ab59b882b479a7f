"""Reading safetensors weights: every name and shape is checked before any weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from sparrow_core.errors import CheckpointError
from sparrow_core.model.tokens import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_EMBEDDING, _LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FLOATS = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True, slots=True)
class Weights:
    """Where each tensor of a checkpoint is."""

    files: Mapping[str, Path]

    def read(self, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
        """Every tensor, copied into memory of its own."""
        tensors: dict[str, torch.Tensor] = {}
        for path in sorted(set(self.files.values())):
            try:
                with safe_open(path, framework="pt") as file:
                    for name in (n for n, p in self.files.items() if p == path):
                        tensors[name] = file.get_tensor(name).to(device=device, dtype=dtype, copy=True)
            except (SafetensorError, OSError) as error:
                raise _damaged(path, error) from error
        return tensors


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is damaged or incomplete ({error}); download or copy it again")


def open_weights(directory: Path, expected: Mapping[str, tuple[int, ...]], *, tied_embeddings: bool) -> Weights:
    """The expected tensors of a checkpoint directory (one safetensors file, or shards with an index).

    Raises CheckpointError naming the file when one is missing or damaged, or a tensor is missing, unknown, not a
    float or of another shape.
    """
    files = _tensor_files(directory)
    shapes = _read_headers(files)
    ignored = {name for name in files if name.endswith("rotary_emb.inv_freq")}
    if tied_embeddings and _LM_HEAD in files:
        _check_tied(files)
        ignored.add(_LM_HEAD)
    present = files.keys() - ignored
    if missing := sorted(expected.keys() - present):
        raise CheckpointError(
            f"{directory} lacks {len(missing)} tensors that its config.json calls for, {missing[0]!r} first; "
            "check num_hidden_layers and tie_word_embeddings, or copy the checkpoint again"
        )
    if unknown := sorted(present - expected.keys()):
        raise CheckpointError(
            f"{files[unknown[0]]} holds {len(unknown)} tensors that its config.json does not call for, "
            f"{unknown[0]!r} first; check model_type and num_hidden_layers"
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise CheckpointError(
                f"{files[name]}: {name} has shape {list(shapes[name])} but config.json calls for {list(shape)}; "
                "config.json and weights are of different models"
            )
    return Weights({name: files[name] for name in expected})


def _tensor_files(directory: Path) -> dict[str, Path]:
    """Tensor name -> file, from the index if there is one."""
    index = directory / INDEX_FILE
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index} has no weight_map; copy it again from its source")
        files = {str(name): directory / str(file) for name, file in weight_map.items()}
        for path in sorted(set(files.values())):
            if not path.is_file():
                raise CheckpointError(f"{path} is missing but {INDEX_FILE} names it; download or copy it again")
        return files
    single = directory / SINGLE_FILE
    if not single.is_file():
        other = sorted(p.name for p in directory.glob("*.bin")) + sorted(p.name for p in directory.glob("*.pt*"))
        found = f" (found {other[0]}: convert it to safetensors first)" if other else ""
        raise CheckpointError(f"{single} is missing, and so is {INDEX_FILE}{found}; give a directory with either")
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (SafetensorError, OSError) as error:
        raise _damaged(single, error) from error


def _read_headers(files: Mapping[str, Path]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(set(files.values())):
        names = [name for name, file in files.items() if file == path]
        try:
            with safe_open(path, framework="pt") as file:
                for name in names:
                    view = file.get_slice(name)
                    if view.get_dtype() not in _FLOATS:
                        raise CheckpointError(
                            f"{path}: {name} has dtype {view.get_dtype()}; quantized weights are not supported, "
                            "give a float32, bfloat16 or float16 checkpoint"
                        )
                    shapes[name] = tuple(view.get_shape())
        except (SafetensorError, OSError) as error:
            raise _damaged(path, error) from error
    return shapes


def _check_tied(files: Mapping[str, Path]) -> None:
    """A tied checkpoint may store its lm_head too, but it must be the embedding."""
    if _EMBEDDING not in files:
        return
    pair = []
    for name in (_EMBEDDING, _LM_HEAD):
        with safe_open(files[name], framework="pt") as file:
            pair.append(file.get_tensor(name))
    if not torch.equal(*pair):
        raise CheckpointError(
            f"{files[_LM_HEAD]}: {_LM_HEAD} differs from {_EMBEDDING} though tie_word_embeddings is true; "
            "set it to false in config.json, or remove the tensor"
        )
