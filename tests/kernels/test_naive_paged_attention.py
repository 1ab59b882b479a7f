"""Paged attention in readable torch against attention by its definition."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_core.testing import PagedCase, assert_close, attend, paged_cases
from sparrow_core.testing.paged import (
    budgets_of_interest,
    fill_cache,
    lengths_of_interest,
    num_pool_pages,
    page_tables,
    poisoned_cache,
)
from sparrow_kernels.paged_attention.naive import dense_pages, merge_lse, paged_decode, paged_prefill


def decode(
    case: PagedCase, dtype: torch.dtype, *, scratch: bool = False, token_major: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    sequences = case.sequences(dtype)
    table_BW = page_tables(case.lengths, case.page_size, case.seed)
    cache = poisoned_cache(
        case.shape,
        num_pages=num_pool_pages(table_BW),
        page_size=case.page_size,
        landmark_vectors=0,
        dtype=dtype,
        device="cpu",
    )
    fill_cache(cache, sequences, case.lengths, table_BW)
    k_PKSD, v_PKSD = cache.k[0], cache.v[0]
    if token_major:
        k_PKSD, v_PKSD = (pool.transpose(1, 2).contiguous().transpose(1, 2) for pool in (k_PKSD, v_PKSD))
    lengths_B = torch.tensor(case.lengths, dtype=torch.int32)
    pages_BKJ, counts_BK = dense_pages(table_BW, lengths_B, case.num_kv_heads, case.page_size)
    q_BND = torch.stack([s.q_LND[-1] if len(s.q_LND) else s.q_LND.new_zeros(s.q_LND.shape[1:]) for s in sequences])
    room = torch.full((2, pages_BKJ.numel() * case.page_size * case.head_dim + 5), torch.nan, dtype=dtype)
    scale = case.head_dim**-0.5
    return paged_decode(q_BND, k_PKSD, v_PKSD, pages_BKJ, counts_BK, lengths_B, scale, room if scratch else None)


@settings(max_examples=40, deadline=None)
@given(case=paged_cases(page_sizes=(1, 4, 16)), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_decode_of_all_pages(case: PagedCase, dtype: torch.dtype) -> None:
    out_BND, lse_BN = decode(case, dtype)
    assert out_BND.dtype == dtype
    assert lse_BN.dtype == torch.float32
    for row, (sequence, length) in enumerate(zip(case.sequences(dtype), case.lengths, strict=True)):
        if length == 0:
            assert not out_BND[row].any()
            assert bool((lse_BN[row] == -torch.inf).all())
        else:
            out_ND, lse_N = attend(sequence, length - 1, case.head_dim**-0.5, None, case.page_size)
            assert_close(out_BND[row], out_ND, dtype)
            torch.testing.assert_close(lse_BN[row].double(), lse_N, rtol=1e-5, atol=1e-4)


def test_scratch_and_strides_change_nothing() -> None:
    case = PagedCase(8, 3, 2, 16, (0, 1, 8, 30), (1, 1, 1, 1), 0)
    base = decode(case, torch.float32)
    for other in (
        decode(case, torch.float32, scratch=True),
        decode(case, torch.float32, token_major=True),
    ):
        assert torch.equal(base[0], other[0])
        assert torch.equal(base[1], other[1])


@pytest.mark.parametrize("page_size", [1, 8, 16, 32, 64, 128])
def test_page_size_changes_nothing_when_all_pages_are_kept(page_size: int) -> None:
    lengths = (1, 129, *lengths_of_interest(16, 5))
    budgets = (1,) * len(lengths)
    paged, _ = decode(PagedCase(page_size, 2, 2, 16, lengths, budgets, 7), torch.float32)
    other, _ = decode(PagedCase(16, 2, 2, 16, lengths, budgets, 7), torch.float32)
    assert_close(paged, other, torch.float32)


def test_counts_may_differ_between_kv_heads() -> None:
    q_BND, pool_PKSD = torch.randn(1, 2, 4), torch.randn(3, 2, 2, 4)
    pages_BKJ = torch.tensor([[[0, 2], [2, 1]]], dtype=torch.int32)
    lengths_B = torch.tensor([5], dtype=torch.int32)
    out_BND, _ = paged_decode(q_BND, pool_PKSD, pool_PKSD, pages_BKJ, torch.tensor([[2, 1]]), lengths_B, 1.0)
    assert torch.equal(out_BND[0, 1], pool_PKSD[2, 1, 0]), "one token: its value"
    tokens_XD = torch.cat([pool_PKSD[0, 0], pool_PKSD[2, 0, :1]])
    torch.testing.assert_close(out_BND[0, 0], (tokens_XD @ q_BND[0, 0]).softmax(0) @ tokens_XD)


@settings(max_examples=30, deadline=None)
@given(case=paged_cases(page_sizes=(1, 8)), data=st.data())
def test_prefill_of_ragged_chunks(case: PagedCase, data: st.DataObject) -> None:
    sequences = case.sequences(torch.float32)
    chunks = [data.draw(st.integers(0, length)) for length in case.lengths]
    table_BW = page_tables(case.lengths, case.page_size, case.seed)
    cache = poisoned_cache(
        case.shape,
        num_pages=num_pool_pages(table_BW),
        page_size=case.page_size,
        landmark_vectors=0,
        dtype=torch.float32,
        device="cpu",
    )
    fill_cache(cache, sequences, case.lengths, table_BW)
    q_TND = torch.cat([s.q_LND[len(s.q_LND) - chunk :] for s, chunk in zip(sequences, chunks, strict=True)])
    offsets = torch.tensor([0, *chunks]).cumsum(0)
    lengths_B, scale = torch.tensor(case.lengths), case.head_dim**-0.5
    out_TND = paged_prefill(q_TND, cache.k[0], cache.v[0], offsets, lengths_B, table_BW, scale)
    token = 0
    for sequence, length, chunk in zip(sequences, case.lengths, chunks, strict=True):
        for position in range(length - chunk, length):
            if position in (length - chunk, length - 1):
                assert_close(out_TND[token], attend(sequence, position, scale, None, case.page_size)[0], torch.float32)
            token += 1


@settings(max_examples=30, deadline=None)
@given(cuts=st.sets(st.integers(0, 12), max_size=4), seed=st.integers(0, 1000))
def test_merging_splits_is_exact(cuts: set[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_X = torch.randn(12, generator=generator, dtype=torch.float64) * 20
    values_XD = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    edges = sorted({0, 12} | cuts)
    parts = [(logits_X[a:b], values_XD[a:b]) for a, b in pairwise(edges)]
    parts.append((logits_X[:0], values_XD[:0]))
    out_D, lse = merge_lse([x.softmax(0) @ v for x, v in parts], [x.logsumexp(0) for x, _ in parts])
    torch.testing.assert_close(out_D, logits_X.softmax(0) @ values_XD)
    torch.testing.assert_close(lse, logits_X.logsumexp(0))


def test_merging_empty_splits_gives_zeros() -> None:
    out_BND, lse_BN = merge_lse([torch.zeros(2, 3, 4)] * 2, [torch.full((2, 3), -torch.inf)] * 2)
    assert not out_BND.any()
    assert bool((lse_BN == -torch.inf).all())


def test_budgets_of_interest_cover_the_edges_of_the_rule() -> None:
    assert budgets_of_interest(10, 1, 2) == [1, 3, 4, 9, 10, 11]
