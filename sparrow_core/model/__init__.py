"""The model: torchtitan's Llama3 and Qwen3 modules with our attention, loaded from Hugging Face checkpoints.

Every import of torchtitan in the project lives in this package.
"""

from sparrow_core.model.attention import AttentionSession, PackedDocuments, SparrowAttention
from sparrow_core.model.checkpoint import build_random, load_model, model_name, resolve_device, resolve_dtype
from sparrow_core.model.export import export_model
from sparrow_core.model.language_model import LanguageModel

__all__ = [
    "AttentionSession",
    "LanguageModel",
    "PackedDocuments",
    "SparrowAttention",
    "build_random",
    "export_model",
    "load_model",
    "model_name",
    "resolve_device",
    "resolve_dtype",
]
