"""One suite for every attention backend, against attention by its definition.

A plugin author runs it on a class in three lines::

    from sparrow_core.testing import BackendConformance

    class TestMine(BackendConformance):
        backend = MyBackend

Class attributes choose device, dtype and sizes. Sizes the backend calls unsupported are skipped with its reasons.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from sparrow_core.cache import AttentionShape
from sparrow_core.contracts import API_VERSION, AttentionBackend, Capabilities, PageSelector, PluginConfig
from sparrow_core.testing.oracle import assert_close, attend
from sparrow_core.testing.paged import (
    PagedCase,
    RandomSequence,
    budgets_of_interest,
    decode_batch,
    fill_cache,
    lengths_of_interest,
    page_count,
    paged_cases,
    poisoned_cache,
)
from sparrow_core.testing.world import MeanKey, UnderTest, World, any_pages, default_config


class BackendConformance:
    """Derive a class named ``Test...`` and set ``backend``."""

    backend: ClassVar[type[AttentionBackend]]
    config: ClassVar[PluginConfig | None] = None
    """None: the backend's defaults."""
    selector: ClassVar[type[PageSelector]] = MeanKey
    """Whose landmarks ``append`` must write."""
    device: ClassVar[str] = "cpu"
    dtype: ClassVar[torch.dtype] = torch.float32
    lse_atol: ClassVar[float] = 1e-4
    page_sizes: ClassVar[tuple[int, ...]] = (1, 8, 16, 32, 64, 128)
    group_sizes: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 5, 8)
    head_dims: ClassVar[tuple[int, ...]] = (16, 64, 128)
    usual_page_size: ClassVar[int] = 16
    usual_group_size: ClassVar[int] = 3
    usual_head_dim: ClassVar[int] = 64
    """Sizes of the tests that vary something else; the backend must support them."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name in ("page_size", "group_size", "head_dim"):
            if name in metafunc.fixturenames:
                values = getattr(self, f"{name}s")
                metafunc.parametrize(name, values, ids=[f"{name}={value}" for value in values])

    @property
    def under_test(self) -> UnderTest:
        config = self.config or default_config(self.backend)
        return UnderTest(self.backend, config, self.selector, self.dtype, self.device, self.lse_atol)

    def world(
        self,
        sequences: Sequence[RandomSequence],
        *,
        page_size: int = 0,
        seed: int = 0,
        shared_pages: int = 0,
        poison: float = torch.nan,
    ) -> World:
        """A fresh backend and cache; skips the test with the backend's reasons where it cannot serve."""
        page_size = page_size or self.usual_page_size
        _, num_heads, head_dim = sequences[0].q_LND.shape
        reasons = self.under_test.reasons(
            AttentionShape(1, num_heads, sequences[0].k_LKD.shape[1], head_dim), page_size
        )
        if reasons:
            pytest.skip("; ".join(reasons))
        return World(
            self.under_test, sequences, page_size=page_size, seed=seed, shared_pages=shared_pages, poison=poison
        )

    def sequences(
        self, lengths: Sequence[int], *, group_size: int = 0, head_dim: int = 0, num_kv_heads: int = 2, seed: int = 0
    ) -> list[RandomSequence]:
        heads = (group_size or self.usual_group_size) * num_kv_heads
        shape = AttentionShape(1, heads, num_kv_heads, head_dim or self.usual_head_dim)
        return [RandomSequence.make(shape, length, seed + row, self.dtype) for row, length in enumerate(lengths)]

    def some_pages(
        self, lengths: Sequence[int], budgets: Sequence[int], page_size: int, num_kv_heads: int = 2, seed: int = 0
    ) -> list[list[list[int]]]:
        per_head = self.backend.capabilities.per_head_selection
        return any_pages(lengths, budgets, page_size, num_kv_heads, per_head=per_head, seed=seed)

    def test_states_what_it_can(self) -> None:
        assert self.backend.api_version == API_VERSION
        assert isinstance(self.backend.capabilities, Capabilities)
        shape = AttentionShape(1, 2 * self.usual_group_size, 2, self.usual_head_dim)
        reasons = self.under_test.reasons(shape, self.usual_page_size)
        assert reasons == [], f"the usual sizes must be supported, but: {'; '.join(reasons)}"

    def test_decode_of_all_pages_is_dense(self, page_size: int, group_size: int) -> None:
        lengths = [0, 1, *lengths_of_interest(page_size, 3)]
        world = self.world(self.sequences(lengths, group_size=group_size), page_size=page_size)
        world.fill([max(0, length - 1) for length in lengths])
        dense_BND = world.check_decode(lengths)
        every = [[list(range(page_count(length, page_size)))] * 2 for length in lengths]
        assert_close(world.check_decode(lengths, every), dense_BND, self.dtype)

    def test_decode_of_any_head_dim(self, head_dim: int) -> None:
        size = self.usual_page_size
        lengths = [1, 2 * size + 1, 5 * size - 1]
        world = self.world(self.sequences(lengths, head_dim=head_dim))
        world.fill([length - 1 for length in lengths])
        world.check_decode(lengths, self.some_pages(lengths, [3, 2, 4], size))

    def test_budgets_at_their_edges(self, page_size: int) -> None:
        lengths = lengths_of_interest(page_size, 6)
        world = self.world(self.sequences(lengths), page_size=page_size)
        world.fill([length - 1 for length in lengths])
        for budget in budgets_of_interest(6, 1, 2):
            world.check_decode(lengths, self.some_pages(lengths, [budget] * len(lengths), page_size, seed=budget))

    def test_budgets_shrink_and_grow_between_steps(self) -> None:
        size = self.usual_page_size
        starts = [5 * size - 2, 6 * size + 3, 2]
        world = self.world(self.sequences([start + 7 for start in starts]))
        world.fill(starts)
        for step, budget in enumerate((7, 3, 5, 1, 8, 4, 2), start=1):
            lengths = [start + step for start in starts]
            budgets = [budget, 1 + (budget + 3) % 8, budget]
            world.check_decode(lengths, self.some_pages(lengths, budgets, size, seed=step))

    @settings(
        max_examples=15,
        deadline=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
        derandomize=True,
    )
    @given(case=paged_cases())
    def test_any_batch(self, case: PagedCase) -> None:
        if self.under_test.reasons(case.shape, case.page_size):
            return
        world = self.world(case.sequences(self.dtype), page_size=case.page_size, seed=case.seed)
        world.fill([max(0, length - 1) for length in case.lengths])
        world.check_decode(case.lengths)
        pages = self.some_pages(case.lengths, case.budgets, case.page_size, case.num_kv_heads, case.seed)
        world.check_decode(case.lengths, pages)

    def test_rows_do_not_depend_on_the_batch(self) -> None:
        size = self.usual_page_size
        lengths = [1, 3 * size, 7 * size + 5]
        pages = self.some_pages(lengths, [2, 2, 5], size)
        together = self.world(self.sequences(lengths))
        together.fill([length - 1 for length in lengths])
        out_BND, _ = together.decode(lengths, pages)
        for row, length in enumerate(lengths):
            alone = self.world([together.sequences[row]])
            alone.fill([length - 1])
            assert_close(alone.decode([length], [pages[row]])[0][0], out_BND[row], self.dtype)

    @pytest.mark.parametrize("other", ["pages permuted", "unused slots hold 1e4"])
    def test_where_a_page_lies_and_what_unused_slots_hold_changes_nothing(self, other: str) -> None:
        size = self.usual_page_size
        lengths = [0, 1, 4 * size + 1, 6 * size]
        sequences = self.sequences(lengths)
        base = self.world(sequences)
        changed = self.world(sequences, seed=1) if other == "pages permuted" else self.world(sequences, poison=1e4)
        pages = self.some_pages(lengths, [1, 1, 3, 4], size)
        for chosen in (None, pages):
            results = []
            for world in (base, changed):
                world.fill([max(0, length - 1) for length in lengths])
                results.append(world.decode(lengths, chosen)[0])
            assert torch.equal(*results), "attention changed with where pages lie or what unused slots hold"

    def test_shared_pages_serve_every_holder(self) -> None:
        size = self.usual_page_size
        first, second = self.sequences([4 * size + 3, 3 * size + 2])
        shared = 2 * size
        for name in ("k_LKD", "v_LKD"):
            getattr(second, name)[:shared] = getattr(first, name)[:shared]
        world = self.world([first, second], shared_pages=2)
        lengths = [4 * size + 3, 3 * size + 2]
        world.fill([length - 1 for length in lengths])
        world.check_decode(lengths)
        world.check_decode(lengths, self.some_pages(lengths, [3, 2], size))

    def test_empty_rows_write_nothing(self) -> None:
        world = self.world(self.sequences([0, 0, 3]))
        for lengths in ([0, 0, 0], [0, 0, 1]):
            world.check_decode(lengths)
            page, written = int(world.table_BW[2, 0]), lengths[2]
            assert int((~world.cache.k.isnan()).any(-1).sum()) == written * 2, "a slot of an empty row was written"
            assert not world.cache.k[0, page, :, :written].isnan().any()

    def test_splits_merge_by_lse_exactly(self) -> None:
        if not self.backend.capabilities.lse:
            pytest.skip("the backend gives no LSE")
        size, split = self.usual_page_size, 2
        length = 5 * size - 3
        world = self.world(self.sequences([length]))
        world.fill([length])
        whole_BND, whole_BN = world.decode([length])
        table_BW = world.table_BW
        parts = []
        for part_BW, tokens in ((table_BW[:, :split], split * size), (table_BW[:, split:], length - split * size)):
            world.backend.plan(decode_batch([tokens], [9], part_BW, self.device))
            q_BND = world.sequences[0].q_LND[length - 1 : length].to(self.device)
            out_BND, lse_BN = world.backend.decode(0, q_BND, None, world.scale)
            assert lse_BN is not None
            parts.append((out_BND.double(), lse_BN.double()))
        lse_BN = torch.logaddexp(parts[0][1], parts[1][1])
        merged_BND = sum((out * (lse - lse_BN).exp()[..., None] for out, lse in parts), torch.zeros_like(parts[0][0]))
        limited_by_lse = torch.float32 if self.dtype == torch.float64 else self.dtype
        assert_close(merged_BND, whole_BND, limited_by_lse)
        assert whole_BN is not None
        torch.testing.assert_close(lse_BN, whole_BN.double(), rtol=1e-5, atol=self.lse_atol)

    def test_prefill_is_causal_attention(self, page_size: int, group_size: int) -> None:
        lengths = [1, *lengths_of_interest(page_size, 2)]
        world = self.world(self.sequences(lengths, group_size=group_size), page_size=page_size)
        for row, out_TND in enumerate(world.prefill([0] * len(lengths), lengths)):
            for position in {0, lengths[row] // 2, lengths[row] - 1}:
                expected_ND, _ = attend(world.sequences[row], position, world.scale, None, page_size)
                assert_close(out_TND[position], expected_ND, self.dtype)

    @pytest.mark.parametrize("seed", range(4))
    def test_prefill_in_any_split_equals_whole(self, seed: int) -> None:
        size, draw = self.usual_page_size, random.Random(seed)
        lengths = [4 * size + 1, 3 * size, 2 * size - 1]
        sequences = self.sequences(lengths)
        whole = self.world(sequences).prefill([0, 0, 0], lengths)
        world, pieces = self.world(sequences, seed=seed), [list[torch.Tensor]() for _ in lengths]
        starts = [0, 0, 0]
        while starts != lengths:
            ends = [
                min(length, start + draw.randint(0, 2 * size)) for start, length in zip(starts, lengths, strict=True)
            ]
            if ends != starts:
                for piece, out_TND in zip(pieces, world.prefill(starts, ends), strict=True):
                    piece.append(out_TND)
            starts = ends
        for piece, out_TND in zip(pieces, whole, strict=True):
            assert_close(torch.cat(piece), out_TND, self.dtype)
        self._check_written(world, lengths)

    def test_decode_continues_prefill(self) -> None:
        size = self.usual_page_size
        prompts, lengths = [size - 1, 2 * size, 1], [size + 2, 2 * size + 3, 4]
        world = self.world(self.sequences(lengths))
        world.prefill([0, 0, 0], prompts)
        for step in range(1, 4):
            world.check_decode([prompt + step for prompt in prompts])
        self._check_written(world, lengths)

    def test_later_tokens_are_never_read(self) -> None:
        size = self.usual_page_size
        length, cut = 3 * size, 2 * size - 3
        base, changed = self.sequences([length])[0], self.sequences([length])[0]
        for tensor in (changed.k_LKD, changed.v_LKD):
            tensor[cut:] = 100.0
        outs = [self.world([s]).prefill([0], [length])[0][:cut] for s in (base, changed)]
        assert_close(outs[1], outs[0], self.dtype)
        world = self.world([changed])
        world.fill([length])
        world.check_decode([cut])
        world.check_decode([cut], [[[1]] * 2])

    def _check_written(self, world: World, lengths: Sequence[int]) -> None:
        """Keys and values bit for bit, landmarks of full pages, and poison everywhere else."""
        expected = poisoned_cache(
            world.cache.shape,
            num_pages=world.cache.num_pages,
            page_size=world.page_size,
            landmark_vectors=self.selector.landmark_vectors,
            dtype=self.dtype,
            device=self.device,
        )
        fill_cache(expected, world.sequences, lengths, world.table_BW, world.selector)
        for got, wanted in ((world.cache.k, expected.k), (world.cache.v, expected.v)):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
        full = ~expected.landmarks.isnan()
        assert torch.equal(full, ~world.cache.landmarks.isnan()), "landmarks belong to full pages, and to each of them"
        if full.any():
            assert_close(world.cache.landmarks[full], expected.landmarks[full], self.dtype)
