"""Length bins and the budget schedule: pages to attend to, by context length.

One rule for the whole project: a token predicted from a context of ``length`` tokens (the current
input token counted) belongs to bin ``min(length // bin_tokens, num_bins - 1)``; the last bin is open-ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparrow_core.errors import InputError

DENSE_PAGES = 2**31 - 1
"""A budget no sequence can exceed: attend to every page."""


def length_bin(lengths: torch.Tensor, bin_tokens: int, num_bins: int) -> torch.Tensor:
    """Bin index of each context length; same shape as ``lengths``, int64."""
    return torch.div(lengths.long(), bin_tokens, rounding_mode="floor").clamp_(max=num_bins - 1)


@dataclass(frozen=True, slots=True)
class BudgetSchedule:
    """Pages per length bin, counted with the ``sink_pages`` first and ``recent_pages`` last pages.

    Raises InputError when a field is out of range.
    """

    pages: tuple[int, ...]
    bin_tokens: int = 2000
    page_size: int = 16
    sink_pages: int = 1
    recent_pages: int = 2

    def __post_init__(self) -> None:
        if not self.pages:
            raise InputError("schedule.pages is empty; give one page count per length bin")
        if self.bin_tokens < 1:
            raise InputError(f"schedule.bin_tokens={self.bin_tokens} must be at least 1")
        if self.page_size < 1:
            raise InputError(f"schedule.page_size={self.page_size} must be at least 1")
        if self.sink_pages < 0 or self.recent_pages < 1:
            raise InputError(
                f"schedule.sink_pages={self.sink_pages} must be >= 0 and "
                f"schedule.recent_pages={self.recent_pages} must be >= 1"
            )
        for index, pages in enumerate(self.pages):
            if not self.min_pages <= pages <= DENSE_PAGES:
                raise InputError(
                    f"schedule.pages[{index}]={pages} is below sink + recent + 1 = {self.min_pages}; "
                    f"give at least {self.min_pages} pages"
                )

    @property
    def min_pages(self) -> int:
        """The smallest budget that can select anything: sink + recent + 1."""
        return self.sink_pages + self.recent_pages + 1

    @property
    def num_bins(self) -> int:
        return len(self.pages)

    @property
    def is_dense(self) -> bool:
        return all(pages == DENSE_PAGES for pages in self.pages)

    def table(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """``[num_bins]`` int32 on ``device``: the form a captured graph reads budgets from."""
        return torch.tensor(self.pages, dtype=torch.int32, device=device)

    def pages_at(self, lengths: torch.Tensor) -> torch.Tensor:
        """Budget in pages for each context length; same shape as ``lengths``, int32."""
        bins = length_bin(lengths, self.bin_tokens, self.num_bins)
        return self.table(lengths.device)[bins]

    def max_pages(self, length: int) -> int:
        """The most pages any sequence of up to ``length`` tokens attends to."""
        last = min(length // self.bin_tokens, self.num_bins - 1)
        num_pages = -(-length // self.page_size)
        return min(num_pages, max(self.pages[: last + 1]))
