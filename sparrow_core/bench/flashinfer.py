"""FlashInfer's paged decode as a competitor, planned at the exact lengths so that only ``run`` is timed."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from sparrow_core.bench.timing import Call

_WORKSPACE_BYTES = 512 << 20
_CUDA_CORE_GROUPS = (1, 2, 3, 4, 6, 8, 16)


def absence(device: torch.device, dtype: torch.dtype, *, wanted: bool) -> str | None:
    """Why FlashInfer is not timed, or None when it can be."""
    if not wanted:
        return "--no-flashinfer was given"
    if importlib.util.find_spec("flashinfer") is None:
        return "flashinfer-python is not installed (it comes with sparrow-rollout[gpu])"
    if device.type != "cuda":
        return f"it needs a CUDA device, not {device.type}"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"it serves bfloat16 and float16, not {dtype}"
    return None


def kinds_for(group: int) -> tuple[str, ...]:
    """Its kernels that serve so many query heads per KV head."""
    return ("tensor", "cuda") if group in _CUDA_CORE_GROUPS else ("tensor",)


class FlashInferDecode:
    """Decode calls by FlashInfer; keeps their wrappers alive."""

    def __init__(self) -> None:
        import flashinfer

        self._module: Any = flashinfer
        self._wrappers: list[Any] = []

    def dense(
        self, q_BND: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor], table_BW: torch.Tensor,
        lengths_B: torch.Tensor, cores: str,
    ) -> tuple[Call, torch.Tensor]:  # fmt: skip
        """A call that attends to every page, and the tensor that it writes."""
        size = kv[0].shape[2]
        counts_B = (lengths_B + size - 1) // size
        live_BW = torch.arange(table_BW.shape[1], device=table_BW.device) < counts_B[:, None]
        return self._planned(q_BND, kv, table_BW[live_BW], counts_B, (lengths_B - 1) % size + 1, cores)

    def selected(
        self, q_BND: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor], pages_BKJ: torch.Tensor,
        counts_BK: torch.Tensor, lengths_B: torch.Tensor, cores: str,
    ) -> tuple[Call, torch.Tensor]:  # fmt: skip
        """The same over selected pages: every KV head of a row is a row of its own over one-head pages."""
        num_heads, size, dim = kv[0].shape[1:]
        heads_K1 = torch.arange(num_heads, device=pages_BKJ.device)[:, None]
        live_BKJ = torch.arange(pages_BKJ.shape[2], device=pages_BKJ.device) < counts_BK[..., None]
        one_head = (kv[0].flatten(0, 1)[:, None], kv[1].flatten(0, 1)[:, None])
        last_X = ((lengths_B - 1) % size + 1).repeat_interleave(num_heads)
        pages_X = (pages_BKJ * num_heads + heads_K1)[live_BKJ]
        q_XGD = q_BND.view(len(last_X), -1, dim)
        call, out_XGD = self._planned(q_XGD, one_head, pages_X, counts_BK.flatten(), last_X, cores)
        return call, out_XGD.view(q_BND.shape)

    def _planned(
        self, q_XND: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor], pages: torch.Tensor,
        counts_X: torch.Tensor, last_X: torch.Tensor, cores: str,
    ) -> tuple[Call, torch.Tensor]:  # fmt: skip
        device, rows = q_XND.device, len(counts_X)
        offsets = torch.cat([counts_X.new_zeros(1), counts_X.cumsum(0)]).int().cpu()
        wrapper = self._module.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device),
            "HND",
            use_cuda_graph=True,
            use_tensor_cores=cores == "tensor",
            paged_kv_indptr_buffer=torch.zeros(rows + 1, dtype=torch.int32, device=device),
            paged_kv_indices_buffer=torch.zeros(len(pages), dtype=torch.int32, device=device),
            paged_kv_last_page_len_buffer=torch.zeros(rows, dtype=torch.int32, device=device),
        )
        _, num_kv_heads, size, dim = kv[0].shape
        wrapper.plan(
            offsets, pages.int(), last_X.int().cpu(), q_XND.shape[1], num_kv_heads, dim, size,
            q_data_type=q_XND.dtype, kv_data_type=q_XND.dtype,
        )  # fmt: skip
        out = torch.empty_like(q_XND)
        self._wrappers.append(wrapper)
        return lambda: wrapper.run(q_XND, kv, out=out), out
