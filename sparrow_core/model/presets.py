"""Hugging Face configs by name, for models with random weights: no checkpoint and no network.

``model.source=random:qwen3-1.7b`` takes a preset, ``model.source=random:PATH`` a ``config.json`` or its directory.
The Qwen3 sizes are those of the published configs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparrow_core.errors import CheckpointError
from sparrow_core.model.tokens import read_json

RANDOM = "random:"


def _qwen3(hidden: int, inner: int, layers: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": tied,
        "initializer_range": 0.02,
        "eos_token_id": 151645,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tied=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, tied=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40, tied=False),
}


def is_random(source: str | Path) -> bool:
    return str(source).startswith(RANDOM)


def random_config(source: str) -> tuple[str, dict[str, Any]]:
    """Name and Hugging Face config of ``random:NAME`` or ``random:PATH``.

    Raises CheckpointError when it is neither a preset nor a config file.
    """
    wanted = source.removeprefix(RANDOM)
    if wanted.lower() in PRESETS:
        return wanted.lower(), dict(PRESETS[wanted.lower()])
    path = Path(wanted).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if wanted and file.is_file():
        return file.parent.name if file.name == "config.json" else file.stem, read_json(file)
    raise CheckpointError(
        f"model source {source!r} names no model; after {RANDOM!r} give one of {', '.join(PRESETS)}, "
        "or the path of a config.json"
    )
