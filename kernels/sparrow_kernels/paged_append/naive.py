"""Writing to the paged cache, readable. Shapes follow the legend of ``sparrow_core.cache``.

A token's place is a physical page and a slot in it. Page -1 marks an empty row, which writes nothing.
"""

from __future__ import annotations

import torch


def decode_slots(
    lengths_B: torch.Tensor, page_table_BW: torch.Tensor, page_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Place of each sequence's newest token: int64 pages ``[B]`` (-1 for an empty row) and slots ``[B]``."""
    position_B = (lengths_B.long() - 1).clamp(min=0)
    pages_B = page_table_BW.long().gather(1, (position_B // page_size)[:, None])[:, 0]
    return pages_B.masked_fill(lengths_B == 0, -1), position_B % page_size


def prefill_slots(
    cu_seqlens_B1: torch.Tensor, lengths_B: torch.Tensor, page_table_BW: torch.Tensor, num_tokens: int, page_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Place of each packed token of chunks that end at ``lengths``: int64 pages ``[T]`` and slots ``[T]``."""
    token_T = torch.arange(num_tokens, device=lengths_B.device)
    ends_B = cu_seqlens_B1[1:].long()
    row_T = torch.searchsorted(ends_B, token_T, right=True)
    position_T = lengths_B.long()[row_T] - ends_B[row_T] + token_T
    return page_table_BW.long()[row_T, position_T // page_size], position_T % page_size


def append(
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    pages_T: torch.Tensor,
    slots_T: torch.Tensor,
) -> None:
    """Write each token's key and value at ``(pages, slots)`` in place; tokens with page -1 are skipped."""
    written_T = pages_T >= 0
    write(k_TKD[written_T], v_TKD[written_T], k_PKSD, v_PKSD, pages_T[written_T], slots_T[written_T])


def write(
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    k_PKSD: torch.Tensor,
    v_PKSD: torch.Tensor,
    pages_T: torch.Tensor,
    slots_T: torch.Tensor,
) -> None:
    """``append`` where every token has a page."""
    k_PKSD[pages_T, :, slots_T] = k_TKD.to(k_PKSD.dtype)
    v_PKSD[pages_T, :, slots_T] = v_TKD.to(v_PKSD.dtype)


def filled_pages(pages_T: torch.Tensor, slots_T: torch.Tensor, page_size: int) -> torch.Tensor:
    """Pages ``[X]`` whose last slot is among the written ones: those that became full and now need landmarks."""
    return pages_T[(slots_T == page_size - 1) & (pages_T >= 0)]
