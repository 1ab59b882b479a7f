"""What a plugin implements. Each contract carries ``api_version``; the registry refuses another one.

The order of one decode step, for every layer: ``backend.append`` writes the new token's key and value,
``selector.select`` chooses pages (sparse layers only), ``backend.decode`` attends to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict

from sparrow_core.cache import (
    AttentionShape,
    DecodeBatch,
    LayerCache,
    PagedKVCache,
    PageSelection,
    PrefillBatch,
)
from sparrow_core.schedule import BudgetSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparrow_core.mismatch import MismatchStream
    from sparrow_core.trace import SampleKey

API_VERSION = 1


class PluginConfig(BaseModel):
    """Base of every plugin's config model; ``type`` is the plugin's registered name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    type: str


class Plugin(ABC):
    """Base of every plugin class. ``Config`` is its pydantic model."""

    api_version: ClassVar[int] = API_VERSION
    Config: ClassVar[type[PluginConfig]]


@dataclass(frozen=True, slots=True)
class SparseLayout:
    """How pages are reserved and which layers are sparse; the same for backend, selector and policy."""

    page_size: int = 16
    sink_pages: int = 1
    recent_pages: int = 2
    dense_layers: tuple[int, ...] = (0, 1)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; the engine asks before it plans."""

    per_head_selection: bool
    """Attends to another page set for each KV head."""
    device_budgets: bool
    """Reads lengths, counts and budgets on the device, so they may change in a captured graph."""
    graph_capture: bool
    lse: bool


class PageSelector(Plugin):
    """Chooses the pages of a decode step by scores per (sequence, KV head, logical page)."""

    landmark_vectors: ClassVar[int]
    """Vectors kept per full page, M; 0 when the selector needs none."""
    graph_capture: ClassVar[bool] = False
    """On CUDA, ``select`` never waits for the device and may be captured in a graph."""

    def __init__(self, config: PluginConfig, layout: SparseLayout) -> None:
        self.config = config
        self.layout = layout

    def landmarks(self, keys_XSD: torch.Tensor) -> torch.Tensor:
        """Summaries ``[X, M, D]`` of X full pages' post-RoPE keys ``[X, S, D]``.

        Computed in float32; the backend rounds to the cache's dtype once.
        """
        return keys_XSD.new_empty(keys_XSD.shape[0], 0, keys_XSD.shape[2])

    @abstractmethod
    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        """float32 scores ``[B, K, W]`` per logical page, higher is kept first.

        Scores of pages that are not full, or lie past the sequence's end, are never read.
        """

    @abstractmethod
    def select(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> PageSelection:
        """The pages each KV head attends to (see ``sparrow_kernels.select_pages.naive`` for the rule)."""


class AttentionBackend(Plugin):
    """Attention over the paged cache. Swapped by the config key ``attention.backend``."""

    capabilities: ClassVar[Capabilities]

    def __init__(self, config: PluginConfig, cache: PagedKVCache, layout: SparseLayout, selector: PageSelector) -> None:
        self.config = config
        self.cache = cache
        self.layout = layout
        self.selector = selector

    @classmethod
    @abstractmethod
    def unsupported(
        cls,
        shape: AttentionShape,
        layout: SparseLayout,
        selector: type[PageSelector],
        dtype: torch.dtype,
        device: torch.device,
    ) -> list[str]:
        """Reasons why this backend cannot serve; empty means it can. Each names the alternative."""

    @abstractmethod
    def plan(self, batch: DecodeBatch | PrefillBatch) -> None:
        """Prepare for one step; called once before the step's layers run."""

    @abstractmethod
    def append(self, layer: int, k_TKD: torch.Tensor, v_TKD: torch.Tensor) -> None:
        """Write the planned batch's new keys and values into their pages, and the landmarks of pages
        that became full."""

    @abstractmethod
    def prefill(self, layer: int, q_TND: torch.Tensor, scale: float) -> torch.Tensor:
        """Dense causal attention ``[T, N, D]`` of the planned chunk over its whole context (after append)."""

    @abstractmethod
    def decode(
        self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention ``[B, N, D]`` over the selected pages (all pages when None), after append.

        Also the natural-log LSE ``[B, N]`` float32 where ``capabilities.lse``, else None.
        An empty row gives zeros and an LSE of -inf.
        """


class SparsityPolicy(Plugin):
    """Decides the KV budget from the mismatch seen so far. Must be deterministic given its observations."""

    def __init__(self, config: PluginConfig, layout: SparseLayout) -> None:
        self.config = config
        self.layout = layout

    @abstractmethod
    def schedule(self) -> BudgetSchedule:
        """The budgets of the next rollout, by length bin."""

    def budgets(self, lengths_B: torch.Tensor, keys: Sequence[SampleKey]) -> torch.Tensor | None:
        """Pages per sequence (int32 ``[B]``) for one decode step, or None to follow ``schedule()``."""
        return None

    def observe(self, mismatch: MismatchStream) -> None:
        """Take in the mismatch of one finished rollout (merged over ranks). Default: ignore it."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state; ``load_state_dict`` of it continues identically."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state but was given {sorted(state)}")


class CostModel(Plugin):
    """Cost of one decode step."""

    unit: ClassVar[Literal["seconds", "eFLOP"]]

    def __init__(self, config: PluginConfig, layout: SparseLayout, landmark_vectors: int = 1) -> None:
        """``landmark_vectors`` is the selector's; 0 for one that scans none."""
        self.config = config
        self.layout = layout
        self.landmark_vectors = landmark_vectors

    @abstractmethod
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        """Cost in ``unit`` of one decode step of B sequences with these lengths and page budgets."""
