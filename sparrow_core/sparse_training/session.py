"""The sparse student's attention in training: what ``LanguageModel.bind`` takes to compute it with gradients."""

from __future__ import annotations

import importlib
from typing import Any, Literal

import torch

from sparrow_core.contracts import PageSelector, SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.model.attention import document_attention
from sparrow_core.sparse_training.attention import SparseLayer, sparse_attention
from sparrow_core.sparse_training.plan import SparseTokens, TrainingPlan

Kernels = Literal["auto", "gather", "triton"]

_TRITON_HEAD_DIMS = (16, 32, 64, 128, 256)


class SparseTrainingSession:
    """Attention of whole packed sequences under the page sets a rollout would choose, differentiable.

    Prompt tokens and dense layers attend to everything before them, drawn tokens in sparse layers to the pages that
    the selector chooses for their query. With ``model.bind(session)``, ``model.hidden(tokens, documents=...)`` gives
    the sparse student's hidden states. A backward pass that recomputes activations must run inside the block too.

    Args:
        tokens: documents and budgets, as ``pack_traces`` gives them.
        selector: the rollout's.
        layout: the rollout's; ``page_size`` is also that of the recorded budgets.
        kernels: ``gather`` is plain torch, ``triton`` needs a CUDA device; ``auto`` takes triton on CUDA.
        max_elements: bounds the scratch space of a run of queries.

    Raises InputError when the kernels cannot serve the device or head dim.
    """

    def __init__(
        self,
        tokens: SparseTokens,
        selector: PageSelector,
        layout: SparseLayout,
        *,
        device: torch.device | str = "cpu",
        kernels: Kernels = "auto",
        max_elements: int = 1 << 24,
    ) -> None:
        self.selector = selector
        self.dense_layers = frozenset(layout.dense_layers)
        self.plan = TrainingPlan(tokens, layout.page_size, torch.device(device))
        self.max_elements = max_elements
        on_cuda = torch.device(device).type == "cuda"
        self._kernels_name = ("triton" if on_cuda else "gather") if kernels == "auto" else kernels
        self._kernels: Any = importlib.import_module(f"sparrow_kernels.sparse_training.{self._kernels_name}")

    def attend(
        self, layer: int, q_BLNH: torch.Tensor, k_BLNH: torch.Tensor, v_BLNH: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of one layer, ``[B, L, N, H]``, over the B * L packed tokens."""
        plan = self.plan
        if layer in self.dense_layers or plan.num_sparse == 0:
            return document_attention(q_BLNH, k_BLNH, v_BLNH, plan.documents, scale)
        self._check(q_BLNH)
        q_TND, k_TKD, v_TKD = (x.flatten(0, 1) for x in (q_BLNH, k_BLNH, v_BLNH))
        dense = plan.dense_index
        prefix_1XND = document_attention(
            q_TND[dense][None], k_TKD[dense][None], v_TKD[dense][None], plan.dense_documents, scale
        )
        call = SparseLayer(
            layer=layer,
            plan=plan,
            selector=self.selector,
            kernels=self._kernels,
            scale=scale,
            max_elements=self.max_elements,
            gathers=self._kernels_name == "gather",
        )
        sparse_RND = sparse_attention(q_TND[plan.sparse_R], k_TKD, v_TKD, call)
        return torch.cat([prefix_1XND[0], sparse_RND])[plan.order_T].view(q_BLNH.shape)

    def _check(self, q_BLNH: torch.Tensor) -> None:
        num_tokens, expected = q_BLNH.shape[0] * q_BLNH.shape[1], self.plan.documents.offsets[-1]
        if num_tokens != expected:
            raise InputError(f"the session's documents hold {expected} tokens but {num_tokens} were given")
        if self._kernels_name == "triton" and q_BLNH.shape[3] not in _TRITON_HEAD_DIMS:
            raise InputError(
                f"kernels=triton serves head_dim {', '.join(map(str, _TRITON_HEAD_DIMS))}, not {q_BLNH.shape[3]}; "
                "give kernels=gather"
            )
