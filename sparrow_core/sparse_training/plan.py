"""Which tokens of packed sequences attend sparsely, over how many pages, and where their keys lie in pages.

Shapes follow the legend of ``sparrow_core.cache``: T packed tokens, P pages of S tokens, W pages of the longest
sequence; R tokens that attend sparsely. Every document starts a page of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from sparrow_core.cache import DecodeBatch
from sparrow_core.errors import InputError
from sparrow_core.model import PackedDocuments
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule
from sparrow_core.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class SparseTokens:
    """Packed documents and the budget each token attends under in a sparse layer.

    Raises InputError when the budgets do not fit the documents or one is below 1.
    """

    documents: PackedDocuments
    budgets_T: torch.Tensor
    """int32 pages on the host; ``DENSE_PAGES`` for prompt tokens, which a rollout prefills densely."""

    def __post_init__(self) -> None:
        if tuple(self.budgets_T.shape) != (self.documents.offsets[-1],):
            raise InputError(
                f"budgets_T has shape {tuple(self.budgets_T.shape)} but the documents hold "
                f"{self.documents.offsets[-1]} tokens; give one budget per token"
            )
        if int(self.budgets_T.min()) < 1:
            at = int(self.budgets_T.argmin())
            raise InputError(f"budgets_T is {int(self.budgets_T[at])} at token {at}; it must be at least 1 page")


def pack_traces(
    traces: Sequence[Trace], schedule: BudgetSchedule | None = None, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, SparseTokens]:
    """Token ids ``[1, T]`` int64 of the traces end to end, and their budgets.

    The last drawn token of a trace predicts nothing that was drawn, so it is left out.

    Args:
        schedule: budgets of drawn tokens by length; None takes those the rollout recorded.
    """
    ids, budgets, sizes = [], [], [0]
    for trace in traces:
        ids.append(torch.cat([trace.prompt_ids, trace.token_ids[:-1]]).long())
        # A token fed at decode is the context's last, so its budget is that of the token predicted from it.
        drawn = trace.pages[1:] if schedule is None else schedule.pages_at(trace.lengths[1:])
        budgets.append(torch.cat([torch.full_like(trace.prompt_ids, DENSE_PAGES), drawn.to(torch.int32)]))
        sizes.append(len(ids[-1]))
    cu_seqlens = torch.tensor(sizes).cumsum(0).to(device=device, dtype=torch.int32)
    return torch.cat(ids)[None].to(device), SparseTokens(PackedDocuments(cu_seqlens), torch.cat(budgets))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sparse tokens ``start`` to ``end``, of whatever documents."""

    start: int
    end: int
    max_length: int
    max_budget: int


class TrainingPlan:
    """Index tensors of one pack, shared by its layers.

    A document's dense prefix is its longest start whose budgets cover every page; it needs no selection.
    """

    def __init__(self, tokens: SparseTokens, page_size: int, device: torch.device) -> None:
        self.page_size = page_size
        self.documents = tokens.documents
        first_page, prefixes, slots, sparse, lengths, first_of = 0, [0], [], [], [], []
        for start, end in itertools.pairwise(tokens.documents.offsets):
            length_L = torch.arange(1, end - start + 1)
            covered_L = tokens.budgets_T[start:end].long() * page_size >= length_L
            prefix = int(covered_L.long().cumprod(0).sum())
            prefixes.append(prefix)
            slots.append(first_page * page_size + length_L - 1)
            sparse.append(torch.arange(start + prefix, end))
            lengths.append(length_L[prefix:])
            first_of.append(torch.full((end - start - prefix,), first_page))
            first_page += -(-(end - start) // page_size)
        self.num_pages = first_page
        index_R = torch.cat(sparse)
        self._lengths_R = torch.cat(lengths)
        self._budgets_R = tokens.budgets_T[index_R]
        is_sparse_T = torch.zeros(len(tokens.budgets_T), dtype=torch.bool)
        is_sparse_T[index_R] = True
        dense_index = (~is_sparse_T).nonzero()[:, 0]
        # Outputs come as dense tokens, then sparse ones; this puts them back in order.
        self.order_T = torch.cat([dense_index, index_R]).argsort().to(device)
        self.slot_T = torch.cat(slots).to(device)
        self.sparse_R = index_R.to(device)
        self.dense_index = dense_index.to(device)
        self.dense_documents = PackedDocuments(torch.tensor(prefixes).cumsum(0).to(device, torch.int32))
        self.lengths_R = self._lengths_R.to(device, torch.int32)
        self.budgets_R = self._budgets_R.to(device, torch.int32)
        self._first_page_R = torch.cat(first_of).to(device, torch.int32)

    @property
    def num_sparse(self) -> int:
        return len(self._lengths_R)

    def chunks(self, elements_per_page: int, max_elements: int) -> Iterator[Chunk]:
        """Runs of sparse tokens whose scratch space, ``elements_per_page`` for every page of context, is bounded."""
        pages_R = (self._lengths_R + self.page_size - 1) // self.page_size
        start = 0
        while start < self.num_sparse:
            rows = max(1, max_elements // elements_per_page)
            widest = torch.cummax(pages_R[start : start + rows], 0).values
            fits = widest * torch.arange(1, len(widest) + 1) * elements_per_page <= max_elements
            end = start + max(1, int(fits.long().cumprod(0).sum()))
            longest = int(self._lengths_R[start:end].max())
            yield Chunk(start, end, longest, int(self._budgets_R[start:end].max()))
            start = end

    def batch(self, chunk: Chunk) -> DecodeBatch:
        """The chunk's tokens as a decode step would see them: each the last of its context."""
        rows = slice(chunk.start, chunk.end)
        width = -(-chunk.max_length // self.page_size)
        logical_W = torch.arange(width, device=self._first_page_R.device, dtype=torch.int32)
        # Entries past a document's end name pages of the next; past the pool's end they are clamped.
        table_CW = (self._first_page_R[rows, None] + logical_W).clamp_(max=self.num_pages - 1)
        return DecodeBatch(
            lengths_B=self.lengths_R[rows],
            page_table_BW=table_CW,
            budgets_B=self.budgets_R[rows],
            max_length=chunk.max_length,
            max_budget=min(chunk.max_budget, width),
        )
