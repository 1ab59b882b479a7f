"""Queries of several sequences with random page sets, over a pool whose unused slots and pages are poison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sparrow_core.testing.oracle import assert_close
from sparrow_kernels.sparse_training import naive

Forward = Callable[..., tuple[torch.Tensor, torch.Tensor]]
Backward = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class TrainingWorld:
    q_CND: torch.Tensor
    k_PKSD: torch.Tensor
    v_PKSD: torch.Tensor
    pages_CKJ: torch.Tensor
    counts_CK: torch.Tensor
    lengths_C: torch.Tensor
    grad_CND: torch.Tensor
    scale: float

    @staticmethod
    def make(
        lengths: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        budget: int = 3,
        kv_heads: int = 2,
        group: int = 2,
        head_dim: int = 16,
        page_size: int = 4,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> TrainingWorld:
        """One query per length, all of one sequence of ``max(lengths)`` tokens; length 0 is an empty row.

        Each KV head attends to the last page of its query and ``budget - 1`` others at random.
        """
        generator = torch.Generator().manual_seed(seed)
        S, longest = page_size, max(lengths)
        num_pages = -(-longest // S)
        physical = (torch.randperm(num_pages, generator=generator) + 1).int()
        shape = (num_pages + 1, kv_heads, S, head_dim)
        k_PKSD, v_PKSD = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        for pool in (k_PKSD, v_PKSD):
            pool[0] = torch.nan
            if longest % S:
                pool[physical[-1], :, longest % S :] = torch.nan
        pages_CKJ = torch.zeros(len(lengths), kv_heads, budget, dtype=torch.int32)
        counts_CK = torch.zeros(len(lengths), kv_heads, dtype=torch.int32)
        for row, length in enumerate(lengths):
            pages = -(-length // S)
            for head in range(kv_heads if length else 0):
                count = min(pages, budget)
                others = torch.randperm(pages - 1, generator=generator)[: count - 1].sort().values
                chosen = torch.cat([others, torch.tensor([pages - 1])])
                pages_CKJ[row, head, :count] = physical[chosen]
                counts_CK[row, head] = count
        rows = (len(lengths), kv_heads * group, head_dim)
        q_CND, grad_CND = (torch.randn(rows, generator=generator, dtype=torch.float64) for _ in range(2))
        q_CND, k_PKSD, v_PKSD, grad_CND = (x.to(device, dtype) for x in (q_CND, k_PKSD, v_PKSD, grad_CND))
        where = (x.to(device) for x in (pages_CKJ, counts_CK, torch.tensor(lengths, dtype=torch.int32)))
        return TrainingWorld(q_CND, k_PKSD, v_PKSD, *where, grad_CND, head_dim**-0.5)

    def check(self, forward: Forward, backward: Backward) -> None:
        """Output, LSE and all gradients against float64 autograd of the naive op."""
        dtype = self.q_CND.dtype
        out, lse, grads = self._expected()
        where = (self.pages_CKJ, self.counts_CK, self.lengths_C, self.scale)
        got_out, got_lse = forward(self.q_CND, self.k_PKSD, self.v_PKSD, *where)
        assert_close(got_out, out, dtype)
        live = self.lengths_C > 0
        assert_close(got_lse[live], lse[live], dtype)
        assert bool((got_lse[~live] == -torch.inf).all())
        assert bool((got_out[~live] == 0).all())
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        # What is there already is added to.
        grad_k, grad_v = (torch.full_like(x, 0.25, dtype=wide) for x in (self.k_PKSD, self.v_PKSD))
        grad_q = backward(self.grad_CND, self.q_CND, self.k_PKSD, self.v_PKSD, got_out, got_lse, *where, grad_k, grad_v)
        for got, expected in zip((grad_q, grad_k - 0.25, grad_v - 0.25), grads, strict=True):
            assert_close(got, expected, dtype)

    def _expected(self) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        # Poison may not enter autograd's products, where 0 x NaN is NaN.
        inputs = [x.double().nan_to_num(0).requires_grad_(True) for x in (self.q_CND, self.k_PKSD, self.v_PKSD)]
        where = (self.pages_CKJ, self.counts_CK, self.lengths_C, self.scale)
        out, lse = naive.sparse_attention(*inputs, *where)
        return out.detach(), lse.detach(), torch.autograd.grad(out, inputs, self.grad_CND.double())
