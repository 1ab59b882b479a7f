"""Paged decode in Triton against the naive op in float64; compiled on CUDA, else interpreted."""

from __future__ import annotations

import pytest
import torch
from decode_worlds import DecodeWorld

from sparrow_kernels.paged_attention.naive import merge_lse
from sparrow_kernels.paged_attention.triton import DecodeTuning, decode_workspace, paged_decode
from sparrow_kernels.work_split import num_programs

CUDA = torch.cuda.is_available()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("programs", [1, 3, 16], ids="programs={}".format)
def test_ragged_lengths_shared_by_any_number_of_programs(
    dtype: torch.dtype, programs: int, device: torch.device
) -> None:
    world = DecodeWorld.make([0, 1, 15, 16, 17, 300, 129], device, group=3, dtype=dtype)
    world.check(programs=programs)
    world.check(world.some_pages([1, 1, 1, 1, 2, 7, 20]), programs=programs)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8, 16], ids="group={}".format)
@pytest.mark.parametrize("head_dim", [64, 128], ids="head_dim={}".format)
def test_groups_and_head_dims(group: int, head_dim: int, device: torch.device) -> None:
    world = DecodeWorld.make([90, 31], device, group=group, head_dim=head_dim, dtype=torch.bfloat16)
    world.check(world.some_pages([4, 2]), programs=5)


@pytest.mark.parametrize("page_size", [1, 8, 16, 32, 64, 128], ids="page_size={}".format)
def test_page_sizes_and_fills(page_size: int, device: torch.device) -> None:
    lengths = [4 * page_size + extra for extra in {0, 1, page_size - 1}]
    world = DecodeWorld.make(lengths, device, page_size=page_size)
    world.check()
    world.check(world.some_pages([1, 3, 5][: len(lengths)]))


def test_a_batch_of_empty_rows(device: torch.device) -> None:
    world = DecodeWorld.make([0, 0, 0], device)
    world.check()
    world.check(world.some_pages([1, 1, 1]))


def test_one_long_row_beside_many_short_ones(device: torch.device) -> None:
    length = 70000 if CUDA else 700
    world = DecodeWorld.make([length, *[5] * 9], device, kv_heads=1, group=5, dtype=torch.bfloat16)
    world.check()


def test_splits_merge_exactly(device: torch.device) -> None:
    world = DecodeWorld.make([160], device)
    out_BND, lse_BN = world.decode()
    parts = []
    for table_BW, tokens in ((world.table_BW[:, :4], 64), (world.table_BW[:, 4:], 96)):
        lengths_B = torch.full_like(world.lengths_B, tokens)
        part = DecodeWorld(world.q_BND, world.k_PKSD, world.v_PKSD, table_BW, lengths_B)
        parts.append(part.decode())
    merged_BND, merged_BN = merge_lse([out for out, _ in parts], [lse for _, lse in parts])
    torch.testing.assert_close(merged_BND, out_BND, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merged_BN, lse_BN, rtol=1e-5, atol=1e-5)


def test_the_same_launch_twice_gives_the_same_bits(device: torch.device) -> None:
    world = DecodeWorld.make([500, 3, 77], device, dtype=torch.bfloat16)
    first, second = world.decode(programs=7), world.decode(programs=7)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("tile", [16, 32, 64, 128], ids="tile={}".format)
def test_tunings_differ_by_rounding_only(tile: int, device: torch.device) -> None:
    world = DecodeWorld.make([200, 65], device)
    tuned, _ = world.decode(tuning=DecodeTuning(tile=tile, num_warps=4, num_stages=2, per_processor=1))
    torch.testing.assert_close(tuned, world.decode()[0], rtol=1e-4, atol=1e-5)


def test_workspace_of_a_larger_batch_and_results_in_place(device: torch.device) -> None:
    world = DecodeWorld.make([100, 40], device)
    programs = num_programs(device, 1)
    workspace = decode_workspace(64, 2, 64, device, programs)
    out, lse = torch.full_like(world.q_BND, torch.nan), torch.full(world.q_BND.shape[:2], torch.nan, device=device)
    args = (world.q_BND, world.k_PKSD, world.v_PKSD, world.table_BW[:, None].expand(-1, 2, -1), None, world.lengths_B)
    paged_decode(*args, world.scale, out=out, lse=lse, workspace=workspace, programs=programs)
    expected_BND, expected_BN = world.expected()
    torch.testing.assert_close(out, expected_BND.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, expected_BN.float(), rtol=1e-4, atol=1e-5)
    assert not workspace.arrivals.any()


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_a_captured_launch_follows_lengths_and_counts(device: torch.device) -> None:
    most = [4000, 900, 17, 2000]
    world = DecodeWorld.make(most, device, group=5, head_dim=128, dtype=torch.bfloat16)
    pages_BKJ, counts_BK = world.some_pages([60, 60, 60, 60])
    programs = num_programs(device, 2)
    workspace = decode_workspace(8, 5, 128, device, programs)
    dense_BKW = world.table_BW[:, None].expand(-1, 2, -1)

    def both() -> list[torch.Tensor]:
        pool = (world.q_BND, world.k_PKSD, world.v_PKSD)
        rest = (world.lengths_B, world.scale)
        shared = {"workspace": workspace, "programs": programs}
        return [
            paged_decode(*pool, dense_BKW, None, *rest, **shared)[0],
            paged_decode(*pool, pages_BKJ, counts_BK, *rest, **shared)[0],
        ]

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for step, lengths in enumerate(([100, 1, 0, 1999], most, [0, 0, 0, 5], [3999, 33, 16, 64], most)):
        smaller = DecodeWorld.make(most, device, group=5, head_dim=128, dtype=torch.bfloat16)
        world.lengths_B.copy_(torch.tensor(lengths))
        some_BKJ, some_BK = world.some_pages([1 + 13 * step, 60, 3, 60 - step], seed=step)
        pages_BKJ.zero_()
        pages_BKJ[..., : some_BKJ.shape[2]] = some_BKJ[..., :60]
        counts_BK.copy_(some_BK)
        for pool, kept in ((world.k_PKSD, smaller.k_PKSD), (world.v_PKSD, smaller.v_PKSD)):
            pool.copy_(kept)
        graph.replay()
        for out_BND, pages in zip(captured, (None, (pages_BKJ, counts_BK)), strict=True):
            expected_BND, _ = world.expected(pages)
            assert not out_BND.isnan().any()
            scale = expected_BND.norm().clamp(min=1e-30)
            assert (out_BND - expected_BND).norm() / scale < 1e-2
