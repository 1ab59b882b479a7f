"""Paged prefill in Triton against the naive op in float64; compiled on CUDA, else interpreted."""

from __future__ import annotations

import pytest
import torch
from decode_worlds import DecodeWorld

from sparrow_core.testing.oracle import assert_close
from sparrow_kernels.paged_attention import naive
from sparrow_kernels.paged_attention.triton_prefill import paged_prefill

CUDA = torch.cuda.is_available()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("group", "head_dim", "page_size"), [(1, 64, 16), (5, 128, 8), (2, 64, 64)])
def test_chunks_see_their_whole_context(
    dtype: torch.dtype, group: int, head_dim: int, page_size: int, device: torch.device
) -> None:
    shape = {"group": group, "head_dim": head_dim, "page_size": page_size, "dtype": dtype, "kv_heads": 1}
    longest = 700 if CUDA else 70
    lengths, chunks = [5, 33, 17, longest], [5, 1, 0, longest - 7]
    world = DecodeWorld.make(lengths, device, **shape)
    offsets_B1 = torch.tensor([0, *chunks], device=device).cumsum(0).int()
    q_TND = torch.randn(sum(chunks), group, head_dim, device=device).to(dtype)
    out_TND = paged_prefill(
        q_TND, world.k_PKSD, world.v_PKSD, offsets_B1, world.lengths_B, world.table_BW, world.scale, max(chunks)
    )
    double = (tensor.double() for tensor in (q_TND, world.k_PKSD, world.v_PKSD))
    expected_TND = naive.paged_prefill(*double, offsets_B1, world.lengths_B, world.table_BW, world.scale)
    assert_close(out_TND, expected_TND, dtype)
