"""What is special to this backend: no more than a chunk of pages is ever gathered."""

from typing import Any

import pytest
import sparrow_chunked
import torch
from sparrow_chunked import ChunkedBackend, ChunkedConfig

from sparrow_core.testing import BackendConformance


def test_no_more_than_a_chunk_is_gathered_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered, gather_pages = [], sparrow_chunked.gather_pages

    def counted(pool_PKSD: torch.Tensor, pages_BKJ: torch.Tensor, *scratch: Any) -> torch.Tensor:
        gathered.append(pages_BKJ.shape[2])
        return gather_pages(pool_PKSD, pages_BKJ, *scratch)

    monkeypatch.setattr(sparrow_chunked, "gather_pages", counted)
    suite = BackendConformance()
    suite.backend, suite.config = ChunkedBackend, ChunkedConfig(chunk_pages=3)
    lengths = [200, 70]
    world = suite.world(suite.sequences(lengths))
    world.prefill([0, 0], [length - 1 for length in lengths])
    world.check_decode(lengths)
    assert max(gathered) == 3
    assert len(gathered) > 2 * 200 // 16 // 3
