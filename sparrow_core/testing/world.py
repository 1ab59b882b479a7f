"""A backend over a poisoned cache, with the sequences it serves: what the backend suite works on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from sparrow_core.cache import AttentionShape, DecodeBatch, LayerCache, PageSelection
from sparrow_core.contracts import AttentionBackend, PageSelector, PluginConfig, SparseLayout
from sparrow_core.testing.oracle import assert_close, attend
from sparrow_core.testing.paged import (
    RandomSequence,
    decode_batch,
    fill_cache,
    num_pool_pages,
    page_count,
    page_tables,
    poisoned_cache,
    prefill_batch,
)


class MeanKey(PageSelector):
    """Keeps the mean key; the suite chooses pages itself."""

    class Config(PluginConfig):
        type: Literal["mean_key"] = "mean_key"

    landmark_vectors: ClassVar[int] = 1

    def landmarks(self, keys_XSD: torch.Tensor) -> torch.Tensor:
        return keys_XSD.to(torch.promote_types(keys_XSD.dtype, torch.float32)).mean(1, keepdim=True)

    def score(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> torch.Tensor:
        raise NotImplementedError

    def select(self, q_BND: torch.Tensor, cache: LayerCache, batch: DecodeBatch) -> PageSelection:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class UnderTest:
    """A backend class and how to run it."""

    backend: type[AttentionBackend]
    config: PluginConfig
    selector: type[PageSelector]
    dtype: torch.dtype
    device: str
    lse_atol: float

    def reasons(self, shape: AttentionShape, page_size: int) -> list[str]:
        """Why the backend cannot serve."""
        layout = SparseLayout(page_size=page_size)
        return self.backend.unsupported(shape, layout, self.selector, self.dtype, torch.device(self.device))


class World:
    """A backend over a poisoned cache, the sequences it serves, and their page tables."""

    def __init__(
        self,
        under_test: UnderTest,
        sequences: Sequence[RandomSequence],
        *,
        page_size: int,
        seed: int = 0,
        shared_pages: int = 0,
        poison: float = torch.nan,
    ) -> None:
        _, num_heads, head_dim = sequences[0].q_LND.shape
        self.under_test, self.sequences, self.page_size = under_test, sequences, page_size
        self.dtype, self.device = under_test.dtype, under_test.device
        self.scale = head_dim**-0.5
        self.table_BW = page_tables([len(s.q_LND) for s in sequences], page_size, seed, shared_pages)
        self.cache = poisoned_cache(
            AttentionShape(1, num_heads, sequences[0].k_LKD.shape[1], head_dim),
            num_pages=num_pool_pages(self.table_BW),
            page_size=page_size,
            landmark_vectors=under_test.selector.landmark_vectors,
            dtype=self.dtype,
            device=self.device,
            poison=poison,
        )
        layout = SparseLayout(page_size=page_size)
        self.selector = under_test.selector(default_config(under_test.selector), layout)
        self.backend = under_test.backend(under_test.config, self.cache, layout, self.selector)

    def fill(self, lengths: Sequence[int]) -> None:
        """Put the first tokens of each sequence into the cache without the backend."""
        fill_cache(self.cache, self.sequences, lengths, self.table_BW, self.selector)

    def prefill(self, starts: Sequence[int], ends: Sequence[int]) -> list[torch.Tensor]:
        """Append and attend to one chunk per sequence; the outputs ``[chunk, N, D]``."""
        q_TND, k_TKD, v_TKD = self._tokens(starts, ends)
        self.backend.plan(prefill_batch(starts, ends, self.table_BW, self.device))
        self.backend.append(0, k_TKD, v_TKD)
        out_TND = self.backend.prefill(0, q_TND, self.scale)
        assert out_TND.shape == q_TND.shape
        assert out_TND.dtype == q_TND.dtype
        return list(torch.split(out_TND, [end - start for start, end in zip(starts, ends, strict=True)]))

    def decode(
        self, lengths: Sequence[int], logical_BK: Sequence[Sequence[Sequence[int]]] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Append each sequence's token at ``length - 1`` and attend to the given logical pages (None: all)."""
        if logical_BK is None:
            budgets = [page_count(max(lengths), self.page_size) + 1] * len(lengths)
        else:
            budgets = [max(1, *(len(pages) for pages in row)) for row in logical_BK]
        q_BND, k_BKD, v_BKD = self._tokens([length - 1 for length in lengths], lengths)
        self.backend.plan(decode_batch(lengths, budgets, self.table_BW, self.device))
        self.backend.append(0, k_BKD, v_BKD)
        pages = None if logical_BK is None else self.selection(logical_BK)
        out_BND, lse_BN = self.backend.decode(0, q_BND, pages, self.scale)
        assert out_BND.shape == q_BND.shape
        assert out_BND.dtype == q_BND.dtype
        return out_BND, lse_BN

    def _tokens(self, starts: Sequence[int], ends: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Packed queries, keys and values of positions ``start .. end - 1``; a start of -1 gives one
        token of NaN queries and of keys and values that are not the poison."""

        def pack(tensors: list[torch.Tensor], filler: float) -> torch.Tensor:
            parts = [
                tensor[start:end] if start >= 0 else tensor.new_full((1, *tensor.shape[1:]), filler)
                for tensor, start, end in zip(tensors, starts, ends, strict=True)
            ]
            return torch.cat(parts).to(self.device)

        return (
            pack([s.q_LND for s in self.sequences], torch.nan),
            pack([s.k_LKD for s in self.sequences], 7.0),
            pack([s.v_LKD for s in self.sequences], 7.0),
        )

    def selection(self, logical_BK: Sequence[Sequence[Sequence[int]]]) -> PageSelection:
        """Physical pages; entries past the count name page 0, which is poisoned and belongs to no sequence."""
        width = max(len(pages) for row in logical_BK for pages in row) + 1
        pages_BKJ = torch.zeros(len(logical_BK), len(logical_BK[0]), width, dtype=torch.int32)
        counts_BK = torch.zeros(len(logical_BK), len(logical_BK[0]), dtype=torch.int32)
        for row, heads in enumerate(logical_BK):
            for head, logical in enumerate(heads):
                pages_BKJ[row, head, : len(logical)] = self.table_BW[row, list(logical)]
                counts_BK[row, head] = len(logical)
        return PageSelection(pages_BKJ.to(self.device), counts_BK.to(self.device))

    def check_decode(
        self, lengths: Sequence[int], logical_BK: Sequence[Sequence[Sequence[int]]] | None = None
    ) -> torch.Tensor:
        """Decode and compare output and LSE with the oracle; returns the output."""
        out_BND, lse_BN = self.decode(lengths, logical_BK)
        for row, (sequence, length) in enumerate(zip(self.sequences, lengths, strict=True)):
            if length == 0:
                assert not out_BND[row].any(), "an empty row must give zeros"
                assert lse_BN is None or bool((lse_BN[row] == -torch.inf).all()), "an empty row must give LSE -inf"
                continue
            pages_K = None if logical_BK is None else logical_BK[row]
            out_ND, lse_N = attend(sequence, length - 1, self.scale, pages_K, self.page_size)
            assert_close(out_BND[row], out_ND, self.dtype)
            if lse_BN is not None:
                assert lse_BN.dtype == torch.float32
                torch.testing.assert_close(lse_BN[row].cpu().double(), lse_N, rtol=1e-5, atol=self.under_test.lse_atol)
        return out_BND


def default_config(plugin: type[AttentionBackend] | type[PageSelector]) -> PluginConfig:
    """The plugin's config with its defaults, named ``under_test`` where it sets no name itself."""
    named = plugin.Config.model_fields["type"].default
    return plugin.Config(type=named if isinstance(named, str) else "under_test")


def any_pages(
    lengths: Sequence[int], budgets: Sequence[int], page_size: int, num_kv_heads: int, *, per_head: bool, seed: int
) -> list[list[list[int]]]:
    """Random logical pages within budget, the last page always among them, other ones for each KV head."""
    draw = random.Random(seed)
    chosen: list[list[list[int]]] = []
    for length, budget in zip(lengths, budgets, strict=True):
        count = page_count(length, page_size)
        heads = []
        for _ in range(num_kv_heads):
            others = draw.sample(range(count - 1), min(budget, count) - 1) if count else []
            heads.append(sorted(others) + ([count - 1] if count else []))
        chosen.append(heads if per_head else [heads[0]] * num_kv_heads)
    return chosen
