"""Where tokens are written, and which pages that fills."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_kernels.paged_append.naive import append, decode_slots, filled_pages, prefill_slots

TABLE = torch.tensor([[5, 2, 9], [7, 1, -1], [-1, -1, -1]], dtype=torch.int32)


def test_decode_slots_of_first_last_and_no_token() -> None:
    pages_B, slots_B = decode_slots(torch.tensor([9, 4, 0], dtype=torch.int32), TABLE, 4)
    assert pages_B.tolist() == [9, 7, -1]
    assert slots_B[:2].tolist() == [0, 3]
    assert filled_pages(pages_B, slots_B, 4).tolist() == [7]


def test_a_chunk_that_starts_inside_a_page_fills_several() -> None:
    cu = torch.tensor([0, 7, 8, 8], dtype=torch.int32)
    lengths_B = torch.tensor([9, 5, 0], dtype=torch.int32)
    pages_T, slots_T = prefill_slots(cu, lengths_B, TABLE, 8, 4)
    assert pages_T.tolist() == [5, 5, 2, 2, 2, 2, 9, 1]
    assert slots_T.tolist() == [2, 3, 0, 1, 2, 3, 0, 0]
    assert filled_pages(pages_T, slots_T, 4).tolist() == [5, 2]


def test_pages_of_one_token_fill_at_once_and_empty_rows_never() -> None:
    pages_B, slots_B = decode_slots(torch.tensor([2, 0], dtype=torch.int32), TABLE[:2], 1)
    assert filled_pages(pages_B, slots_B, 1).tolist() == [2]


def test_append_writes_its_slots_and_nothing_else() -> None:
    k_PKSD, v_PKSD = torch.full((3, 2, 4, 5), torch.nan), torch.full((3, 2, 4, 5), torch.nan)
    k_TKD, v_TKD = torch.randn(3, 2, 5), torch.randn(3, 2, 5)
    append(k_TKD, v_TKD, k_PKSD, v_PKSD, torch.tensor([2, -1, 0]), torch.tensor([3, 0, 1]))
    for pool_PKSD, new_TKD in ((k_PKSD, k_TKD), (v_PKSD, v_TKD)):
        assert torch.equal(pool_PKSD[2, :, 3], new_TKD[0])
        assert torch.equal(pool_PKSD[0, :, 1], new_TKD[2])
        assert int((~pool_PKSD.isnan()).sum()) == 2 * 2 * 5


@given(
    spans=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4), size=st.integers(1, 5)
)
def test_any_split_visits_every_position_once_and_fills_every_full_page_once(
    spans: list[tuple[int, int]], size: int
) -> None:
    lengths = [a + b for a, b in spans]
    width = max(-(-length // size) for length in lengths) + 1
    table_BW = torch.arange(len(spans) * width).view(len(spans), width)
    places, filled = [], []
    for starts, ends in (([0] * len(spans), [a for a, _ in spans]), ([a for a, _ in spans], lengths)):
        chunks = torch.tensor([end - start for start, end in zip(starts, ends, strict=True)])
        cu = torch.cat([torch.tensor([0]), chunks.cumsum(0)])
        pages_T, slots_T = prefill_slots(cu, torch.tensor(ends), table_BW, int(cu[-1]), size)
        places += list(zip(pages_T.tolist(), slots_T.tolist(), strict=True))
        filled += filled_pages(pages_T, slots_T, size).tolist()
    wanted = [(row * width + at // size, at % size) for row, length in enumerate(lengths) for at in range(length)]
    assert sorted(places) == wanted
    assert sorted(filled) == [
        row * width + page for row, length in enumerate(lengths) for page in range(length // size)
    ]
