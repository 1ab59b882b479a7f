"""Append in Triton against the naive ops, bit for bit where nothing is rounded; compiled on CUDA, else interpreted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sparrow_kernels.paged_append import naive
from sparrow_kernels.paged_append.triton import (
    LANDMARK_VECTORS,
    LandmarkKind,
    QKNormRope,
    decode_append,
    decode_norm_rope_append,
    write_landmarks,
)
from sparrow_kernels.paged_append.triton_prefill import prefill_append

KINDS: list[LandmarkKind] = ["none", "mean", "min_max"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Cache:
    """A poisoned pool with its page table."""

    def __init__(
        self,
        rows: int,
        width: int,
        size: int,
        kind: LandmarkKind,
        dtype: torch.dtype,
        device: torch.device,
        dim: int = 64,
    ) -> None:
        pages, self.kind, self.heads, self.dim = rows * width + 1, kind, 2, dim
        self.table_BW = (torch.randperm(rows * width) + 1).view(rows, width).int().to(device)
        self.k = torch.full((pages, 2, size, dim), torch.nan, dtype=dtype, device=device)
        self.v = self.k.clone()
        self.marks = torch.full((pages, 2, LANDMARK_VECTORS[kind], dim), torch.nan, dtype=dtype, device=device)

    def copy(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k.clone(), self.v.clone()

    def expect(self, k: torch.Tensor, v: torch.Tensor, filled_X: torch.Tensor, tolerance: float = 0.0) -> None:
        """Pools equal, landmarks those of the filled pages and of no other page."""
        torch.testing.assert_close(self.k, k, rtol=tolerance, atol=tolerance, equal_nan=True)
        torch.testing.assert_close(self.v, v, rtol=0, atol=0, equal_nan=True)
        if self.kind == "none":
            return
        keys = self.k[filled_X].double()
        marks = keys.mean(2, keepdim=True) if self.kind == "mean" else torch.stack(keys.aminmax(dim=2), 2)
        expected = torch.full_like(self.marks, torch.nan)
        expected[filled_X] = marks.to(expected.dtype)
        torch.testing.assert_close(self.marks, expected, equal_nan=True)

    def fill(self, lengths: list[int]) -> None:
        """The tokens before the newest one."""
        size = self.k.shape[2]
        for row, length in enumerate(lengths):
            for at in range(length - 1):
                for pool in (self.k, self.v):
                    pool[self.table_BW[row, at // size], :, at % size] = torch.randn(2, self.dim).to(pool)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("size", [1, 8, 16], ids="page_size={}".format)
def test_decode(kind: LandmarkKind, dtype: torch.dtype, size: int, device: torch.device) -> None:
    lengths = [0, 1, size, size + 1, 2 * size]
    cache = Cache(len(lengths), 3, size, kind, dtype, device)
    cache.fill(lengths)
    lengths_B = torch.tensor(lengths, dtype=torch.int32, device=device)
    k_BKD, v_BKD = (torch.randn(len(lengths), 2, 64, device=device).to(dtype) for _ in range(2))
    k, v = cache.copy()
    pages_B, slots_B = naive.decode_slots(lengths_B, cache.table_BW, size)
    naive.append(k_BKD, v_BKD, k, v, pages_B, slots_B)
    decode_append(k_BKD, v_BKD, cache.k, cache.v, cache.marks, cache.table_BW, lengths_B, kind)
    cache.expect(k, v, naive.filled_pages(pages_B, slots_B, size))


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize(("group", "dim"), [(1, 128), (3, 64), (5, 64)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_norm_and_rope_before_the_append(
    norm: bool, group: int, dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    lengths = [0, 1, 8, 13, 16]
    cache = Cache(len(lengths), 2, 8, "mean", dtype, device, dim)
    cache.fill(lengths)
    lengths_B = torch.tensor(lengths, dtype=torch.int32, device=device)
    qkv = torch.randn(len(lengths), 2 * group + 4, dim, device=device).to(dtype)
    q_BND, k_BKD, v_BKD = qkv.split([2 * group, 2, 2], dim=1)
    angles = torch.outer(torch.arange(32.0), 1e4 ** (-torch.arange(0, dim, 2) / dim)).repeat(1, 2).to(device)
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1)
    weights = [torch.rand(dim, device=device).to(dtype) + 0.5 for _ in range(2)] if norm else [None, None]

    def transformed(x_BND: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        x = x_BND.double()
        if weight is not None:
            x = F.rms_norm(x, (dim,), weight.double(), 1e-5).to(dtype).double()
        cos, sin = cos_sin[(lengths_B.long() - 1).clamp(min=0)][:, None].double().split(dim, -1)
        half = torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], -1)
        return (x * cos + half * sin).to(dtype)

    k, v = cache.copy()
    pages_B, slots_B = naive.decode_slots(lengths_B, cache.table_BW, 8)
    naive.append(transformed(k_BKD, weights[1]), v_BKD, k, v, pages_B, slots_B)
    transform = QKNormRope(cos_sin, *weights, eps=1e-5)
    out_BND = decode_norm_rope_append(
        q_BND, k_BKD, v_BKD, cache.k, cache.v, cache.marks, cache.table_BW, lengths_B, "mean", transform
    )
    expected_BND = transformed(q_BND, weights[0])
    expected_BND[0] = 0
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(out_BND, expected_BND, rtol=tolerance, atol=tolerance)
    cache.expect(k, v, naive.filled_pages(pages_B, slots_B, 8), tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 8, 16], ids="page_size={}".format)
def test_prefill_in_chunks(kind: LandmarkKind, size: int, device: torch.device) -> None:
    cache = Cache(4, 6, size, kind, torch.bfloat16, device)
    k, v = cache.copy()
    cuts = [[2 * size - 1, 0, size, 1], [2 * size + 1, 0, size, 5 * size], [6 * size, 1, 3 * size, 5 * size + 1]]
    starts = [0, 0, 0, 0]
    for ends in cuts:
        chunks = [end - start for start, end in zip(starts, ends, strict=True)]
        offsets_B1 = torch.tensor([0, *chunks], device=device).cumsum(0).int()
        lengths_B = torch.tensor(ends, dtype=torch.int32, device=device)
        tokens = sum(chunks)
        k_TKD, v_TKD = (torch.randn(tokens, 2, 64, device=device).bfloat16() for _ in range(2))
        naive.append(k_TKD, v_TKD, k, v, *naive.prefill_slots(offsets_B1, lengths_B, cache.table_BW, tokens, size))
        prefill_append(
            k_TKD, v_TKD, cache.k, cache.v, cache.marks, offsets_B1, cache.table_BW, lengths_B, kind, max(chunks)
        )
        starts = ends
    full = [cache.table_BW[row, : end // size].long() for row, end in enumerate(cuts[-1])]
    cache.expect(k, v, torch.cat(full))


def test_given_landmarks_go_to_full_last_pages_only(device: torch.device) -> None:
    cache = Cache(4, 3, 8, "min_max", torch.bfloat16, device)
    lengths_B = torch.tensor([0, 8, 9, 24], dtype=torch.int32, device=device)
    marks_BKMD = torch.randn(4, 2, 2, 64, device=device).bfloat16().float()
    expected = cache.marks.clone()
    for row, page in ((1, 0), (3, 2)):
        expected[cache.table_BW[row, page].long()] = marks_BKMD[row].bfloat16()
    write_landmarks(marks_BKMD, cache.marks, cache.table_BW, lengths_B, 8)
    torch.testing.assert_close(cache.marks, expected, rtol=0, atol=0, equal_nan=True)
