"""Which physical pages are free and how many sequences hold each. Host side only; no tensor is touched."""

from __future__ import annotations

from collections import deque

from sparrow_core.errors import OutOfPagesError


class PagePool:
    """Reference-counted page ids ``0 .. num_pages - 1``.

    Free pages are handed out in first-in, first-out order, so a run's page ids are reproducible.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise OutOfPagesError(f"rollout.num_pages={num_pages} must be at least 1")
        self.num_pages = num_pages
        self._free: deque[int] = deque(range(num_pages))
        self._references = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._free)

    def references(self, page: int) -> int:
        return self._references[page]

    def allocate(self, count: int) -> list[int]:
        """``count`` pages with one reference each. The caller checks ``num_free`` first."""
        assert count <= len(self._free), f"{count} pages asked for, {len(self._free)} free"
        pages = [self._free.popleft() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def share(self, pages: list[int]) -> None:
        """One more holder for each of ``pages``."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free and cannot be shared"
            self._references[page] += 1

    def release(self, pages: list[int]) -> None:
        """One holder fewer for each of ``pages``; a page without holders becomes free."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is released twice"
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)
