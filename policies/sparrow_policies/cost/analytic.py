"""Analytic cost of a decode step: FLOPs and bytes of each kernel, derived in docs/cost-model.md.

For one sequence of length n with a budget of p pages of s tokens, in one sparse layer with key width d (elements of
one token's key over all KV heads) and group size r:

    attended  a(n, p) = n                           if p >= ceil(n / s)
                      = n - (ceil(n / s) - p) s      else (the last page may be partial)
    attention 4 r d a FLOPs, 2 d a elements read
    scoring   2 M d floor(n / s) + r d FLOPs, M d floor(n / s) elements read       only when pages are left out
    selection one comparison, one float32 written and read for each page and KV head; ids written and read

The dense layers attend to n and score nothing. The step's weights are read once for the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar, cast

import torch
from pydantic import Field, PositiveFloat, field_validator

from sparrow_core.contracts import CostModel, PluginConfig, SparseLayout
from sparrow_core.errors import InputError
from sparrow_policies.cost.hardware import HARDWARE, MODELS, Hardware, ModelShape

_T = TypeVar("_T")
_SCORE_BYTES = 4
_PAGE_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What one kernel (or a row of like kernels) of a step does."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step's work by kernel, over the whole batch and all layers."""

    weights: KernelWork
    append: KernelWork
    dense_layers: KernelWork
    sparse_layers: KernelWork
    scoring: KernelWork
    selection: KernelWork

    def kernels(self) -> tuple[KernelWork, ...]:
        return (self.weights, self.append, self.dense_layers, self.sparse_layers, self.scoring, self.selection)

    @property
    def flops(self) -> float:
        return sum(kernel.flops for kernel in self.kernels())

    @property
    def bytes(self) -> float:
        return sum(kernel.bytes for kernel in self.kernels())


class _AnalyticFields(PluginConfig):
    """Machine, model and how compute and memory time combine."""

    hardware: str | Hardware = "h200"
    """A name of ``HARDWARE`` or its own peak rates."""
    model: str | ModelShape
    """A name of ``MODELS`` or a shape (``ModelShape.from_hf_config``)."""
    weight_bytes: PositiveFloat = 2.0
    kv_bytes: PositiveFloat = 2.0
    bound: Literal["roofline", "sum", "bandwidth"] = "roofline"
    """``roofline``: each kernel takes the longer of its compute and memory time, kernels run one after another;
    ``sum``: compute plus memory time, nothing overlaps; ``bandwidth``: memory time alone (the byte floor)."""
    compute_fraction: float = Field(default=1.0, gt=0, le=1)
    bandwidth_fraction: float = Field(default=1.0, gt=0, le=1)
    """Reached share of the peaks; 0.9 of an H200's bandwidth is what dense decode kernels were seen to reach."""
    overhead_seconds: float = Field(default=0.0, ge=0)
    """Added to each step: launches, sampling, host."""
    score_per_query_head: bool = False
    """The selector scores each query head, not the mean of its group."""

    @field_validator("hardware")
    @classmethod
    def hardware_is_known(cls, value: str | Hardware) -> str | Hardware:
        return _known(value, HARDWARE, "hardware", "{flops, bandwidth}")

    @field_validator("model")
    @classmethod
    def model_is_known(cls, value: str | ModelShape) -> str | ModelShape:
        return _known(value, MODELS, "model", "a shape made by ModelShape.from_hf_config")


class AnalyticConfig(_AnalyticFields):
    type: str = "analytic"


class EquivalentFlopsConfig(_AnalyticFields):
    """``bound`` and ``overhead_seconds`` do not apply."""

    type: str = "analytic_eflop"


def _known(value: str | _T, table: dict[str, _T], field: str, other: str) -> str | _T:
    if isinstance(value, str) and value not in table:
        raise ValueError(f"cost {field}={value!r} is unknown; use one of {', '.join(table)} or give {other}")
    return value


class AnalyticCost(CostModel):
    """Seconds of a decode step. Activations, logits and norms are not counted; ``overhead_seconds`` stands for them."""

    Config: ClassVar[type[PluginConfig]] = AnalyticConfig
    unit: ClassVar[Literal["seconds", "eFLOP"]] = "seconds"

    def __init__(self, config: PluginConfig, layout: SparseLayout, landmark_vectors: int = 1) -> None:
        super().__init__(config, layout, landmark_vectors)
        self.settings = settings = cast(_AnalyticFields, config)
        peak = HARDWARE[settings.hardware] if isinstance(settings.hardware, str) else settings.hardware
        self.hardware = Hardware(
            flops=peak.flops * settings.compute_fraction, bandwidth=peak.bandwidth * settings.bandwidth_fraction
        )
        self.shape = MODELS[settings.model] if isinstance(settings.model, str) else settings.model
        self.num_dense = sum(layer < self.shape.num_layers for layer in layout.dense_layers)

    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        """Cost of one decode step; rows of length 0 are empty. Budgets may exceed a sequence's pages."""
        return self._total(self.step_work(lengths_B, pages_B).kernels())

    def prefill_cost(self, prompt_lengths_B: torch.Tensor) -> float:
        """Cost in ``unit`` of the dense prefill of these prompts in one pass; not part of any step."""
        return self._total(self.prefill_work(prompt_lengths_B))

    def step_work(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> StepWork:
        """FLOPs and bytes of one decode step, by kernel."""
        shape, settings = self.shape, self.settings
        n_B, pages_B = _checked(lengths_B, pages_B)
        num_pages_B = -torch.div(-n_B, self.layout.page_size, rounding_mode="floor")
        left_out_B = (num_pages_B - pages_B).clamp_(min=0)
        attended = int((n_B - left_out_B * self.layout.page_size).sum())
        batch, context = int((n_B > 0).sum()), int(n_B.sum())
        weight_read = shape.parameters * settings.weight_bytes if batch else 0.0
        num_sparse = shape.num_layers - self.num_dense
        return StepWork(
            weights=KernelWork(2.0 * shape.parameters * batch, weight_read),
            append=KernelWork(0.0, 2 * shape.num_layers * shape.key_width * settings.kv_bytes * batch),
            dense_layers=self._attention(context * self.num_dense),
            sparse_layers=self._attention(attended * num_sparse),
            scoring=self._scoring(n_B, left_out_B > 0, num_sparse),
            selection=self._selection(n_B, pages_B, left_out_B > 0, num_sparse),
        )

    def prefill_work(self, prompt_lengths_B: torch.Tensor) -> tuple[KernelWork, ...]:
        """Weights, attention and KV writes of a dense causal prefill in one pass.

        A query at position i attends to i tokens, so a prompt of n computes n (n + 1) / 2 of a decode token's
        attention; keys and values are written once and read once (a fused kernel's floor).
        """
        n_B = prompt_lengths_B.double()
        shape, tokens = self.shape, float(n_B.sum())
        pairs = float((n_B * (n_B + 1) / 2).sum()) * shape.num_layers
        kv_bytes = 2 * shape.num_layers * shape.key_width * self.settings.kv_bytes * tokens
        weights = KernelWork(2.0 * shape.parameters * tokens, shape.parameters * self.settings.weight_bytes)
        return (weights, KernelWork(self._attention(pairs).flops, 2 * kv_bytes))

    def _attention(self, layer_tokens: float) -> KernelWork:
        width = self.shape.key_width
        return KernelWork(
            4.0 * self.shape.group_size * width * layer_tokens, 2.0 * width * self.settings.kv_bytes * layer_tokens
        )

    def _scoring(self, n_B: torch.Tensor, scores_B: torch.Tensor, num_layers: int) -> KernelWork:
        if self.landmark_vectors == 0:
            return KernelWork(0.0, 0.0)
        width, group = self.shape.key_width, self.shape.group_size
        landmarks = self.landmark_vectors * int((n_B[scores_B] // self.layout.page_size).sum()) * num_layers
        heads = group if self.settings.score_per_query_head else 1.0
        means = 0.0 if self.settings.score_per_query_head else group * width * int(scores_B.sum()) * num_layers
        return KernelWork(2.0 * heads * width * landmarks + means, width * self.settings.kv_bytes * landmarks)

    def _selection(
        self, n_B: torch.Tensor, pages_B: torch.Tensor, scores_B: torch.Tensor, num_layers: int
    ) -> KernelWork:
        heads = self.shape.num_kv_heads * num_layers
        scored = int((n_B[scores_B] // self.layout.page_size).sum()) * heads if self.landmark_vectors else 0
        chosen = int(pages_B[scores_B].sum()) * heads
        return KernelWork(float(scored), 2.0 * _SCORE_BYTES * scored + 2.0 * _PAGE_ID_BYTES * chosen)

    def _total(self, kernels: tuple[KernelWork, ...]) -> float:
        compute = [kernel.flops / self.hardware.flops for kernel in kernels]
        memory = [kernel.bytes / self.hardware.bandwidth for kernel in kernels]
        if self.settings.bound == "bandwidth":
            seconds = sum(memory)
        elif self.settings.bound == "sum":
            seconds = sum(compute) + sum(memory)
        else:
            seconds = sum(map(max, compute, memory))
        return seconds + self.settings.overhead_seconds


class AnalyticEquivalentFlops(AnalyticCost):
    """Equivalent FLOPs of a decode step: FLOPs plus I FLOPs for each byte moved."""

    Config: ClassVar[type[PluginConfig]] = EquivalentFlopsConfig
    unit: ClassVar[Literal["seconds", "eFLOP"]] = "eFLOP"

    def _total(self, kernels: tuple[KernelWork, ...]) -> float:
        per_byte = self.hardware.flops_per_byte
        return sum(kernel.flops + per_byte * kernel.bytes for kernel in kernels)


def _checked(lengths_B: torch.Tensor, pages_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if lengths_B.shape != pages_B.shape or lengths_B.ndim != 1:
        raise InputError(
            f"step_cost needs lengths and pages of one shape [B], not {list(lengths_B.shape)} and {list(pages_B.shape)}"
        )
    return lengths_B.to("cpu", torch.int64), pages_B.to("cpu", torch.int64)
