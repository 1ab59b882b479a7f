"""``sparrow bench kernels``: one layer's attention, and scoring with selection, beside FlashInfer and the floor.

Ours are whatever ``attention.backend`` and ``attention.selector`` name. Each figure is the time of one call inside a
CUDA graph of several (a loop on a CPU); the calls of a selection rotate over copies of the landmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sparrow_core import registry
from sparrow_core.bench import flashinfer
from sparrow_core.bench.kernel_cases import KernelCase
from sparrow_core.bench.pages import num_pages, shuffled_table
from sparrow_core.bench.plan import GIB, free_bytes
from sparrow_core.bench.steps import Timing, refuse_without_graphs
from sparrow_core.bench.timing import Call, captured, medians, time_rounds
from sparrow_core.cache import AttentionShape, DecodeBatch, LayerCache, PagedKVCache, PageSelection
from sparrow_core.config import AttentionConfig
from sparrow_core.contracts import AttentionBackend, PageSelector
from sparrow_core.engine.stats import attended_tokens
from sparrow_core.errors import InputError

OURS = "ours"
DECODE_CALLS, SELECT_COPIES = 4, 6


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Seconds per call and the floor's seconds; ``difference`` is each competitor's relative RMS distance to ours."""

    case: KernelCase
    seconds: dict[str, float]
    floor: float
    bytes: int
    difference: dict[str, float]
    rounds: dict[str, list[float]]

    def as_json(self) -> dict[str, Any]:
        ratio = {name: seconds / self.floor for name, seconds in self.seconds.items()}
        bandwidth = {name: self.bytes / seconds for name, seconds in self.seconds.items()}
        return {**asdict(self), "name": self.case.name, "ratio": ratio, "bandwidth": bandwidth}


@dataclass(frozen=True, slots=True)
class KernelBench:
    """Kernels of one head layout; ``bandwidth`` in bytes per second is what floors divide by."""

    attention: AttentionConfig
    device: torch.device
    dtype: torch.dtype
    bandwidth: float
    timing: Timing
    num_kv_heads: int = 8
    head_dim: int = 128
    with_flashinfer: bool = True

    def row(self, case: KernelCase) -> KernelRow:
        """Raises InputError when the case does not fit the memory, or the backend cannot serve it."""
        refuse_without_graphs(self.attention, self.device)
        problem = _Problem.of(self, case)
        return self._select_row(problem) if case.kind == "select" else self._decode_row(problem)

    def _decode_row(self, problem: _Problem) -> KernelRow:
        case, selection = problem.case, problem.selection() if problem.case.kind == "selected" else None
        scale = self.head_dim**-0.5
        problem.backend.plan(problem.batch)

        def ours() -> torch.Tensor:
            return problem.backend.decode(0, problem.q_BND, selection, scale)[0]

        calls: dict[str, Call] = {OURS: ours}
        outputs = {}
        if self.with_flashinfer:
            theirs = flashinfer.FlashInferDecode()
            cache, batch = problem.cache.layers[0], problem.batch
            kv = (cache.k_PKSD, cache.v_PKSD)
            for cores in flashinfer.kinds_for(case.group):
                name = f"flashinfer {cores} cores"
                if selection is None:
                    calls[name], outputs[name] = theirs.dense(
                        problem.q_BND, kv, batch.page_table_BW, batch.lengths_B, cores
                    )
                else:
                    calls[name], outputs[name] = theirs.selected(
                        problem.q_BND, kv, selection.pages_BKJ, selection.counts_BK, batch.lengths_B, cores
                    )
        rounds = self._time({name: [call] * DECODE_CALLS for name, call in calls.items()})
        expected = ours().double()
        difference = {name: float((out.double() - expected).norm() / expected.norm()) for name, out in outputs.items()}
        tokens = sum(problem.attended)
        return self._finished(case, rounds, 2 * tokens * problem.token_bytes, difference)

    def _select_row(self, problem: _Problem) -> KernelRow:
        size, marks = self.attention.page_size, problem.cache.landmarks.shape[3]
        layers = problem.landmark_copies(SELECT_COPIES if self.device.type == "cuda" else 1)

        def one(layer: LayerCache) -> Callable[[], PageSelection]:
            return lambda: problem.selector.select(problem.q_BND, layer, problem.batch)

        rounds = self._time({OURS: [one(layer) for layer in layers]})
        scanned = sum(n // size for n in problem.case.lengths if -(-n // size) > problem.case.pages)
        return self._finished(problem.case, rounds, scanned * marks * problem.token_bytes, {})

    def _time(self, calls: dict[str, list[Call]]) -> dict[str, list[float]]:
        graphs = {name: captured(each, self.device) for name, each in calls.items()}
        rounds = time_rounds(graphs, self.device, rounds=self.timing.rounds, repeats=self.timing.repeats)
        return {name: [seconds / len(calls[name]) for seconds in each] for name, each in rounds.items()}

    def _finished(
        self, case: KernelCase, rounds: dict[str, list[float]], moved: int, difference: dict[str, float]
    ) -> KernelRow:
        return KernelRow(case, medians(rounds), moved / self.bandwidth, moved, difference, rounds)


@dataclass(frozen=True, slots=True)
class _Problem:
    """One layer's cache, batch and queries of a case, random but for the page table."""

    case: KernelCase
    cache: PagedKVCache
    backend: AttentionBackend
    selector: PageSelector
    batch: DecodeBatch
    q_BND: torch.Tensor

    @classmethod
    def of(cls, bench: KernelBench, case: KernelCase) -> _Problem:
        attention, layout, device = bench.attention, bench.attention.layout, bench.device
        size, heads = attention.page_size, bench.num_kv_heads
        shape = AttentionShape(1, heads * case.group, heads, bench.head_dim)
        selector_class = registry.load("sparrow.selectors", attention.selector.type)
        backend_class = registry.load("sparrow.backends", attention.backend.type)
        reasons = backend_class.unsupported(shape, layout, selector_class, bench.dtype, device)
        if reasons:
            raise InputError(
                f"attention.backend={attention.backend.type} cannot serve {case.name}: {'; '.join(reasons)}"
            )
        _check_budget(case, attention)
        marks = selector_class.landmark_vectors
        if case.kind == "select" and marks == 0:
            raise InputError(
                f"attention.selector={attention.selector.type} keeps no landmarks, so case {case.name!r} has no floor; "
                "use mean_landmark, gqa_max_softmax or quest, or leave the select cases out"
            )
        _check_memory(case, num_pages(case.lengths, size), PagedKVCache.bytes_per_page(shape, size, marks, bench.dtype),
                      device)  # fmt: skip
        cache = PagedKVCache(
            shape, num_pages=num_pages(case.lengths, size), page_size=size, landmark_vectors=marks, dtype=bench.dtype,
            device=device,
        )  # fmt: skip
        generator = torch.Generator(device=device).manual_seed(0)
        for tensor in (cache.k, cache.v, cache.landmarks):
            tensor.normal_(generator=generator)
        width = -(-case.length // size)
        pages = case.pages or width
        batch = DecodeBatch(
            lengths_B=torch.tensor(case.lengths, dtype=torch.int32, device=device),
            page_table_BW=shuffled_table(case.lengths, width, size, generator),
            budgets_B=torch.full((case.batch,), pages, dtype=torch.int32, device=device),
            max_length=case.length,
            max_budget=pages,
        )
        q_BND = torch.empty(case.batch, shape.num_heads, bench.head_dim, dtype=bench.dtype, device=device)
        q_BND.normal_(generator=generator)
        selector = selector_class(attention.selector, layout)
        return cls(case, cache, backend_class(attention.backend, cache, layout, selector), selector, batch, q_BND)

    @property
    def token_bytes(self) -> int:
        """Bytes of one vector of every KV head: a token's key, its value, or a landmark."""
        return self.cache.shape.num_kv_heads * self.cache.shape.head_dim * self.cache.dtype.itemsize

    @property
    def attended(self) -> list[int]:
        pages = self.case.pages or self.batch.max_budget
        return [attended_tokens(length, pages, self.cache.page_size) for length in self.case.lengths]

    def selection(self) -> PageSelection:
        """What the selector picks for these queries, copied out of its scratch space."""
        picked = self.selector.select(self.q_BND, self.cache.layers[0], self.batch)
        return PageSelection(picked.pages_BKJ.clone(), picked.counts_BK.clone())

    def landmark_copies(self, copies: int) -> list[LayerCache]:
        layer = self.cache.layers[0]
        return [LayerCache(0, layer.k_PKSD, layer.v_PKSD, layer.landmarks_PKMD.clone()) for _ in range(copies)]


def _check_budget(case: KernelCase, attention: AttentionConfig) -> None:
    least, width = attention.sink_pages + attention.recent_pages + 1, -(-case.length // attention.page_size)
    if case.pages and not least <= case.pages < width:
        raise InputError(
            f"pages={case.pages} of case {case.name!r} must be from {least} (sink + recent + 1) to {width - 1}, "
            f"one below the pages of length={case.length}"
        )


def _check_memory(case: KernelCase, pages: int, page_bytes: int, device: torch.device) -> None:
    needed, free = pages * page_bytes, free_bytes(device)
    if needed > free:
        raise InputError(
            f"case {case.name!r} needs {needed / GIB:.2f} GiB but {free / GIB:.2f} GiB are free; "
            f"a batch of about {case.batch * free // needed} of these rows fits"
        )
