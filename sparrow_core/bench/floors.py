"""The byte floor of a decode step: what must be read once, over the bandwidth that a large copy reaches.

With KV heads K, head dim D, e bytes per element, a row attends in each layer to ``a`` tokens of 2 K D e bytes; a
sparse layer that leaves pages out also reads the M landmark vectors (K D e bytes each) of every full page.
Weights are read once per step. Activations, logits and page ids are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow_core.cache import AttentionShape
from sparrow_core.contracts import SparseLayout
from sparrow_core.engine.stats import attended_tokens
from sparrow_core.errors import InputError
from sparrow_core.hardware import HARDWARE, Hardware, hardware_named
from sparrow_core.model import LanguageModel


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes that one decode step must read."""

    weights: int
    kv: int
    landmarks: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.landmarks


@dataclass(frozen=True, slots=True)
class FloorModel:
    """Everything of a model and layout that a floor depends on."""

    shape: AttentionShape
    layout: SparseLayout
    element_bytes: int
    weight_bytes: int
    landmark_vectors: int

    @classmethod
    def of(cls, model: LanguageModel, layout: SparseLayout, landmark_vectors: int) -> FloorModel:
        return cls(model.shape, layout, model.dtype.itemsize, weight_bytes_read(model), landmark_vectors)

    def step(self, lengths: Sequence[int], pages: Sequence[int] | None) -> StepBytes:
        """Bytes of one step of rows with these lengths; ``pages`` per row in sparse layers, None for a dense step."""
        num_dense = self.shape.num_layers
        if pages is not None:
            num_dense = sum(layer < num_dense for layer in self.layout.dense_layers)
        num_sparse = self.shape.num_layers - num_dense
        layer_tokens, marks = num_dense * sum(lengths), 0
        if pages is not None:
            layer_tokens += num_sparse * self._attended(lengths, pages)
            marks = num_sparse * self._scanned(lengths, pages)
        vector = self.shape.num_kv_heads * self.shape.head_dim * self.element_bytes
        return StepBytes(self.weight_bytes, 2 * vector * layer_tokens, vector * self.landmark_vectors * marks)

    def _attended(self, lengths: Sequence[int], pages: Sequence[int]) -> int:
        size = self.layout.page_size
        return sum(attended_tokens(length, count, size) for length, count in zip(lengths, pages, strict=True))

    def _scanned(self, lengths: Sequence[int], pages: Sequence[int]) -> int:
        """Full pages whose landmarks are scored: those of rows that leave pages out."""
        size = self.layout.page_size
        pairs = zip(lengths, pages, strict=True)
        return sum(length // size for length, count in pairs if count < -(-length // size))


def weight_bytes_read(model: LanguageModel) -> int:
    """Bytes of weights that a decode step reads: all but an input embedding that is not also the lm_head."""
    parameters = model.module.named_parameters(remove_duplicate=False)
    numbers: int = sum(p.numel() for name, p in parameters if not name.startswith("tok_embeddings."))
    return numbers * model.dtype.itemsize


def hardware_for(name: str | None, device: torch.device) -> tuple[str, Hardware]:
    """The hardware table's entry called ``name``, by default that of the device.

    Raises InputError when the name, or the device's own, is not in the table.
    """
    known = ", ".join(HARDWARE)
    if name is not None:
        if name not in HARDWARE:
            raise InputError(f"hardware={name!r} is unknown; use one of {known}")
        return name, HARDWARE[name]
    found = hardware_named(torch.cuda.get_device_name(device)) if device.type == "cuda" else "cpu"
    if found is None:
        raise InputError(
            f"no hardware entry for {torch.cuda.get_device_name(device)!r}; pass --hardware, one of {known}"
        )
    return found, HARDWARE[found]
