"""GGUF files: dequantised once to a float32 safetensors directory in the user cache."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from sparrow_core.errors import CheckpointError
from sparrow_core.model.cache import cached_directory
from sparrow_core.model.hf_config import ARCHITECTURES, SUPPORTED_MODEL_TYPES
from sparrow_core.model.weights import SINGLE_FILE

_CONVERSION = 1
"""Raised whenever the conversion's output changes; part of the cache key."""
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 18


def converted_gguf(path: Path) -> Path:
    """The Hugging Face directory converted from a GGUF file, made at first use.

    Raises CheckpointError when the file is damaged or of an unsupported architecture, InputError when the cache
    cannot be written.
    """
    key = f"models/{path.stem}-{_fingerprint(path)}"
    return cached_directory(key, lambda directory: convert_gguf(path, directory))


def _fingerprint(path: Path) -> str:
    """A digest of the size and of up to 64 evenly spaced blocks of 256 KiB, so that large files stay quick."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{_CONVERSION} {size}".encode())
    with path.open("rb") as file:
        for sample in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def convert_gguf(path: Path, directory: Path) -> None:
    """Write config.json, float32 model.safetensors, generation_config.json and tokenizer files."""
    _check_gguf(path)
    # Imported here: transformers takes seconds, and is needed for this and for tokenizers alone.
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    location = {"gguf_file": path.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), dtype=torch.float32, **location)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **location)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    save_file(state, directory / SINGLE_FILE, metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(_hf_config(model.config), indent=2) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _hf_config(config: Any) -> dict[str, Any]:
    values: dict[str, Any] = {**config.to_diff_dict(), "architectures": [ARCHITECTURES[config.model_type]]}
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        values.pop(key, None)
    return {**values, "dtype": "float32"}


def _check_gguf(path: Path) -> None:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(str(path))
        field = reader.get_field("general.architecture")
        architecture = field.contents() if field is not None else None
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole GGUF file ({error}); download or copy it again") from error
    if architecture not in SUPPORTED_MODEL_TYPES:
        raise CheckpointError(
            f"{path}: general.architecture={architecture!r} is not supported; "
            f"supported: {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
