from __future__ import annotations

import torch

from sparrow_core.bench.pages import num_pages, shuffled_table, spread_lengths


def test_every_row_has_pages_of_its_own_in_no_order() -> None:
    lengths = [1, 16, 17, 160]
    table_BW = shuffled_table(lengths, 12, 16, torch.Generator().manual_seed(0))
    used = [table_BW[row, : -(-length // 16)].tolist() for row, length in enumerate(lengths)]
    flat = [page for pages in used for page in pages]
    assert sorted(flat) == list(range(num_pages(lengths, 16)))
    assert used[3] != sorted(used[3])
    assert table_BW.dtype == torch.int32
    assert int(table_BW.max()) < num_pages(lengths, 16)


def test_spread_lengths_are_even_and_end_at_the_longest() -> None:
    assert spread_lengths(4, 100) == [25, 50, 75, 100]
    assert spread_lengths(4, 2) == [1, 1, 1, 2]
