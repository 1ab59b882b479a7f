"""The file of measured tails: what is written is what is read, and damage is named."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sparrow_core.search import TailEntry, TailRow, TailTable, read_tail_table


def entry(tail=0.9, low=0.88, high=0.92):
    return TailEntry(tokens=500, tail=tail, low=low, high=high)


def test_round_trip(tmp_path):
    row = TailRow(selector="quest", page_size=16, pages=32, bins=(entry(), None))
    table = TailTable(model="m", quantile=0.05, bin_tokens=2000, rows=(row,))
    table.write(tmp_path / "t.json")
    assert read_tail_table(tmp_path / "t.json") == table
    assert table.num_bins == 2


def test_an_interval_that_misses_its_tail_is_refused():
    with pytest.raises(ValidationError, match="does not hold its tail"):
        entry(low=0.95, high=0.99)


def test_rows_of_different_length_are_refused():
    rows = [TailRow(selector="quest", page_size=16, pages=p, bins=(entry(),) * p) for p in (1, 2)]
    with pytest.raises(ValidationError, match="rows\\[1\\] has 2 bins"):
        TailTable(quantile=0.05, bin_tokens=2000, rows=tuple(rows))
