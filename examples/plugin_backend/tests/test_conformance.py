"""What holds for every backend, with chunks of one page and of many."""

from sparrow_chunked import ChunkedBackend, ChunkedConfig

from sparrow_core.testing import BackendConformance


class TestChunked(BackendConformance):
    backend = ChunkedBackend


class TestOnePageAtATime(BackendConformance):
    backend = ChunkedBackend
    config = ChunkedConfig(chunk_pages=1)
    page_sizes = (1, 16)
