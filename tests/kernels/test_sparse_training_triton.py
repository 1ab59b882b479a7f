"""Sparse training attention in Triton against float64 autograd; compiled on CUDA, else interpreted."""

from __future__ import annotations

import pytest
import torch
from sparse_training_worlds import TrainingWorld

from sparrow_kernels.sparse_training import triton as kernels
from sparrow_kernels.sparse_training.triton_backward import inverse_lists

LENGTHS = [1, 15, 16, 17, 0, 33, 63, 64, 65, 70]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("group", "head_dim", "page_size", "budget"), [(1, 32, 16, 3), (3, 16, 16, 4), (5, 16, 8, 9), (2, 64, 5, 2)]
)
def test_values_and_gradients(
    group: int, head_dim: int, page_size: int, budget: int, dtype: torch.dtype, device: torch.device
) -> None:
    world = TrainingWorld.make(
        LENGTHS, device, group=group, head_dim=head_dim, page_size=page_size, budget=budget, dtype=dtype
    )
    world.check(kernels.forward, kernels.backward)


def test_inverse_lists_hold_every_selected_page_once(device: torch.device) -> None:
    world = TrainingWorld.make([1, 0, 9, 30], device, page_size=4, budget=3)
    lists = inverse_lists(world.pages_CKJ, world.counts_CK, world.lengths_C, len(world.k_PKSD), 4)
    expected = []
    for c, length in enumerate(world.lengths_C.tolist()):
        for head, count in enumerate(world.counts_CK[c].tolist()):
            for j in range(count):
                filled = length - 4 * (-(-length // 4) - 1) if j == count - 1 else 4
                expected.append((int(world.pages_CKJ[c, head, j]), head, c, filled))
    got = []
    for page_head in range(len(lists.offsets) - 1):
        for e in range(int(lists.offsets[page_head]), int(lists.offsets[page_head + 1])):
            got.append((page_head // 2, page_head % 2, int(lists.query_E[e]), int(lists.filled_E[e])))
    assert got == sorted(expected)


def test_gradients_of_shared_pages_are_deterministic(device: torch.device) -> None:
    world = TrainingWorld.make([40] * 24, device, head_dim=16, page_size=16, budget=3)
    where = (world.pages_CKJ, world.counts_CK, world.lengths_C, world.scale)
    inputs = (world.q_CND, world.k_PKSD, world.v_PKSD)
    out, lse = kernels.forward(*inputs, *where)
    results = []
    for _ in range(2):
        grads = [torch.zeros_like(world.k_PKSD) for _ in range(2)]
        kernels.backward(world.grad_CND, *inputs, out, lse, *where, *grads)
        results.append(grads)
    for first, again in zip(*results, strict=True):
        assert torch.equal(first, again)
