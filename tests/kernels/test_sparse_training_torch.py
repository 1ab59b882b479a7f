"""Sparse training attention in torch: the naive op against the oracle, the gathered one against its autograd."""

from __future__ import annotations

import pytest
import torch
from sparse_training_worlds import TrainingWorld

from sparrow_core.testing.oracle import assert_close, attend
from sparrow_core.testing.paged import RandomSequence
from sparrow_kernels.sparse_training import gather, naive

LENGTHS = [1, 3, 4, 5, 0, 8, 9, 23, 24, 25, 40]


def test_the_naive_op_is_attention_over_the_chosen_pages() -> None:
    generator = torch.Generator().manual_seed(0)
    L, K, N, D, S = 22, 2, 6, 8, 4
    q_LND, k_LKD, v_LKD = (torch.randn(L, n, D, generator=generator, dtype=torch.float64) for n in (N, K, K))
    sequence = RandomSequence(q_LND, k_LKD, v_LKD)
    chosen = {21: ([0, 3, 5], [1, 2, 5]), 7: ([0, 1], [1, 1]), 12: ([0, 2, 3], [0, 1, 3])}
    k_PKSD, v_PKSD = (torch.cat([x, x.new_zeros(2, K, D)]).view(6, S, K, D).transpose(1, 2) for x in (k_LKD, v_LKD))
    for position, pages_K in chosen.items():
        distinct = [sorted(set(pages)) for pages in pages_K]
        padded = torch.tensor([[p + [0] * (3 - len(p)) for p in distinct]])
        counts = torch.tensor([[len(p) for p in distinct]])
        length = torch.tensor([position + 1])
        out, lse = naive.sparse_attention(q_LND[[position]], k_PKSD, v_PKSD, padded, counts, length, 0.3)
        expected_out, expected_lse = attend(sequence, position, 0.3, distinct, S)
        assert_close(out[0], expected_out, torch.float64)
        assert_close(lse[0], expected_lse, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["fp64", "fp32", "bf16"])
@pytest.mark.parametrize(("group", "budget", "page_size"), [(1, 1, 4), (3, 3, 4), (5, 10, 7), (2, 4, 1)])
def test_gathered_values_and_gradients(group: int, budget: int, page_size: int, dtype: torch.dtype) -> None:
    world = TrainingWorld.make(LENGTHS, group=group, budget=budget, page_size=page_size, dtype=dtype)
    world.check(gather.forward, gather.backward)


def test_gradients_are_those_of_finite_differences() -> None:
    world = TrainingWorld.make([5, 9, 10], group=2, head_dim=3, dtype=torch.float64, kv_heads=1)
    inputs = [x.nan_to_num(0).requires_grad_(True) for x in (world.q_CND, world.k_PKSD, world.v_PKSD)]
    where = (world.pages_CKJ, world.counts_CK, world.lengths_C, world.scale)
    assert torch.autograd.gradcheck(lambda q, k, v: naive.sparse_attention(q, k, v, *where)[0], inputs)
