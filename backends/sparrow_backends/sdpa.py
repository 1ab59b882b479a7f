"""PyTorch's own attention over gathered pages: the default, on any device, and the fast one on a CPU.

Config: ``type: sdpa``. It copies the pages it attends to in every layer; on CUDA choose ``triton``, which reads them
in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from sparrow_backends.reference import ReferenceBackend
from sparrow_core.cache import DecodeBatch, PageSelection, PrefillBatch
from sparrow_core.contracts import Capabilities, PluginConfig
from sparrow_kernels.paged_attention.naive import gather_pages
from sparrow_kernels.select_pages.naive import num_pages


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What one selection asks of the gathered keys and values, X = J * S slots per KV head."""

    pages: PageSelection
    dead_Z: torch.Tensor
    """Indices of unfilled slots in the flattened ``[B * K * X]``."""
    mask_BK1X: torch.Tensor | None
    """True where there is a token; None when every slot up to ``width`` is one."""
    width: int
    empty_BK11: torch.Tensor


class SdpaBackend(ReferenceBackend):
    """The reference's cache handling, with ``scaled_dot_product_attention`` for decode. Gives no LSE."""

    class Config(PluginConfig):
        type: str = "sdpa"

    capabilities: ClassVar[Capabilities] = Capabilities(
        per_head_selection=True, device_budgets=True, graph_capture=False, lse=False
    )

    def plan(self, batch: DecodeBatch | PrefillBatch) -> None:
        super().plan(batch)
        if isinstance(batch, DecodeBatch):
            self._all_pages = self._gathered(batch, self._dense)

    def decode(
        self, layer: int, q_BND: torch.Tensor, pages: PageSelection | None, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert isinstance(self._batch, DecodeBatch), "decode() without a planned DecodeBatch"
        cache = self.cache.layers[layer]
        chosen = self._all_pages if pages is None else self._gathered(self._batch, pages)
        B, N, D = q_BND.shape
        K = cache.k_PKSD.shape[1]
        scratch = self._scratch_for(chosen.pages.pages_BKJ.numel())
        k_BKXD = gather_pages(cache.k_PKSD, chosen.pages.pages_BKJ, scratch[0])
        v_BKXD = gather_pages(cache.v_PKSD, chosen.pages.pages_BKJ, scratch[1])
        for gathered in (k_BKXD, v_BKXD):
            gathered.view(-1, D).index_fill_(0, chosen.dead_Z, 0)
        # The queries of a group attend to the same keys: they are SDPA's query positions.
        out_BKGD = F.scaled_dot_product_attention(
            q_BND.reshape(B, K, N // K, D),
            k_BKXD[:, :, : chosen.width],
            v_BKXD[:, :, : chosen.width],
            attn_mask=chosen.mask_BK1X,
            scale=scale,
        )
        if chosen.mask_BK1X is not None:
            out_BKGD = out_BKGD.masked_fill(chosen.empty_BK11, 0)
        return out_BKGD.reshape(B, N, D), None

    def _gathered(self, batch: DecodeBatch, pages: PageSelection) -> _Gathered:
        size = self.cache.page_size
        slots = pages.pages_BKJ.shape[2] * size
        unfilled_B = num_pages(batch.lengths_B, size) * size - batch.lengths_B
        tokens_BK = (pages.counts_BK * size - unfilled_B[:, None]).clamp(min=0)
        live_BKX = torch.arange(slots, device=tokens_BK.device) < tokens_BK[..., None]
        dead_Z = (~live_BKX).flatten().nonzero()[:, 0]
        empty_BK11 = (tokens_BK == 0)[..., None, None]
        fewest, most = tokens_BK.aminmax()
        if fewest == most > 0:
            return _Gathered(pages, dead_Z, None, int(most), empty_BK11)
        # An empty row attends to its first slot, so that the softmax is of something; its output is dropped.
        live_BKX[..., :1] |= empty_BK11[..., 0]
        return _Gathered(pages, dead_Z, live_BKX[:, :, None], slots, empty_BK11)
