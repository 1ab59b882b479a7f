"""The model: torchtitan's Llama3 and Qwen3 modules with our attention, loaded from Hugging Face checkpoints.

Imports of torchtitan live in this package and in ``sparrow_trainers.titan``.
"""

from sparrow_core.model.attention import AttentionSession, PackedDocuments, SparrowAttention
from sparrow_core.model.checkpoint import (
    build_random,
    inspect_model,
    load_model,
    model_name,
    resolve_device,
    resolve_dtype,
)
from sparrow_core.model.export import export_model
from sparrow_core.model.language_model import LanguageModel

__all__ = [
    "AttentionSession",
    "LanguageModel",
    "PackedDocuments",
    "SparrowAttention",
    "build_random",
    "export_model",
    "inspect_model",
    "load_model",
    "model_name",
    "resolve_device",
    "resolve_dtype",
]
