"""Decode steps over a pool whose every unused slot, page and table entry is poison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow_core.testing.oracle import assert_close
from sparrow_kernels.paged_attention import naive
from sparrow_kernels.paged_attention.triton import DecodeTuning, paged_decode


@dataclass(frozen=True, slots=True)
class DecodeWorld:
    q_BND: torch.Tensor
    k_PKSD: torch.Tensor
    v_PKSD: torch.Tensor
    table_BW: torch.Tensor
    lengths_B: torch.Tensor

    @staticmethod
    def make(
        lengths: Sequence[int],
        device: torch.device,
        *,
        kv_heads: int = 2,
        group: int = 2,
        head_dim: int = 64,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> DecodeWorld:
        generator = torch.Generator().manual_seed(seed)
        counts = [-(-length // page_size) for length in lengths]
        width = max(1, *counts)
        order = (torch.randperm(sum(counts), generator=generator) + 1).int()
        table_BW = torch.full((len(lengths), width), -1, dtype=torch.int32)
        shape = (sum(counts) + 1, kv_heads, page_size, head_dim)
        k_PKSD, v_PKSD = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        q_BND = torch.randn(len(lengths), kv_heads * group, head_dim, generator=generator, dtype=torch.float64)
        start = 0
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            table_BW[row, :count] = order[start : start + count]
            start += count
            if length == 0:
                q_BND[row] = torch.nan
            for pool in (k_PKSD, v_PKSD):
                pool[0] = torch.nan
                if length % page_size:
                    pool[table_BW[row, count - 1], :, length % page_size :] = torch.nan
        return DecodeWorld(
            *(tensor.to(device, dtype) for tensor in (q_BND, k_PKSD, v_PKSD)),
            table_BW.to(device),
            torch.tensor(lengths, dtype=torch.int32, device=device),
        )

    @property
    def scale(self) -> float:
        return float(self.q_BND.shape[-1] ** -0.5)

    @property
    def kv_heads(self) -> int:
        return self.k_PKSD.shape[1]

    def some_pages(self, budgets: Sequence[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Other random pages for each KV head, the last one among them; entries past the count name page 0."""
        generator = torch.Generator().manual_seed(seed)
        size = self.k_PKSD.shape[2]
        width = max(1, *budgets)
        pages_BKJ = torch.zeros(len(budgets), self.kv_heads, width, dtype=torch.int32)
        counts_BK = torch.zeros(len(budgets), self.kv_heads, dtype=torch.int32)
        for row, budget in enumerate(budgets):
            total = -(-int(self.lengths_B[row]) // size)
            kept = min(total, budget)
            for head in range(self.kv_heads if kept else 0):
                others = torch.randperm(total - 1, generator=generator)[: kept - 1].sort().values
                logical = torch.cat([others, torch.tensor([total - 1])])
                pages_BKJ[row, head, :kept] = self.table_BW[row].cpu()[logical]
                counts_BK[row, head] = kept
        return pages_BKJ.to(self.q_BND.device), counts_BK.to(self.q_BND.device)

    def decode(
        self,
        pages: tuple[torch.Tensor, torch.Tensor] | None = None,
        *,
        tuning: DecodeTuning | None = None,
        programs: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, counts = pages or (self.table_BW[:, None].expand(-1, self.kv_heads, -1), None)
        return paged_decode(
            self.q_BND,
            self.k_PKSD,
            self.v_PKSD,
            chosen,
            counts,
            self.lengths_B,
            self.scale,
            tuning=tuning,
            programs=programs,
        )

    def expected(self, pages: tuple[torch.Tensor, torch.Tensor] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The naive op in float64."""
        size = self.k_PKSD.shape[2]
        chosen, counts = pages or naive.dense_pages(self.table_BW, self.lengths_B, self.kv_heads, size)
        double = (tensor.double() for tensor in (self.q_BND.nan_to_num(), self.k_PKSD, self.v_PKSD))
        return naive.paged_decode(*double, chosen, counts, self.lengths_B, self.scale)

    def check(self, pages: tuple[torch.Tensor, torch.Tensor] | None = None, programs: int | None = None) -> None:
        out_BND, lse_BN = self.decode(pages, programs=programs)
        expected_BND, expected_BN = self.expected(pages)
        assert_close(out_BND, expected_BND, self.q_BND.dtype)
        tolerance = 1e-4 if self.q_BND.dtype == torch.float32 else 2e-3
        torch.testing.assert_close(lse_BN, expected_BN.float(), rtol=1e-5, atol=tolerance)
        empty_B = self.lengths_B == 0
        assert not out_BND[empty_B].any()
        assert bool((lse_BN[empty_B] == -torch.inf).all())
