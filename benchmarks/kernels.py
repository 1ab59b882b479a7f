"""Kernel timings on one CUDA device: ours beside FlashInfer and beside the byte floor, in one run.

usage: python benchmarks/kernels.py OUT.json [--sweep KIND] [--no-flashinfer] [--only PREFIX]

Each figure is the time of one call inside a CUDA graph of several calls, the median over replays; competitors are
replayed in turn. Working sets are many times the second-level cache, or the calls of a graph rotate over copies that
are. ``--sweep decode`` or ``select`` also times candidate tunings, from which the tables of ``tuning_for`` were chosen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import triton

from sparrow_core.bench.flashinfer import FlashInferDecode, kinds_for
from sparrow_core.bench.kernel_cases import DENSE, SELECT, SELECTED, KernelCase
from sparrow_core.bench.timing import captured, medians, time_rounds
from sparrow_kernels.page_scores.triton import ScoreKind, ScoreTuning
from sparrow_kernels.paged_append.triton import QKNormRope, decode_append, decode_norm_rope_append
from sparrow_kernels.paged_attention import triton as attention
from sparrow_kernels.paged_attention.triton_prefill import paged_prefill
from sparrow_kernels.select_pages import triton as selection
from sparrow_kernels.work_split import num_programs

BANDWIDTH = 4.3e12
"""Bytes per second of a large device-to-device copy on the H200: the floor every row is compared with."""
DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
SIZE, HEADS, DIM = 16, 8, 128
"""Tokens per page, KV heads, head dim: those of Qwen3."""
REPLAYS = 21


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    microseconds: dict[str, float]
    floor: float
    extra: dict[str, Any] = field(default_factory=dict)


def timed(competitors: dict[str, list[Callable[[], Any]]]) -> dict[str, float]:
    """Microseconds per call of each competitor, medians of replays taken in turn."""
    graphs = {name: captured(calls, DEVICE) for name, calls in competitors.items()}
    rounds = time_rounds(graphs, DEVICE, rounds=REPLAYS, repeats=1)
    return {name: seconds * 1e6 / len(competitors[name]) for name, seconds in medians(rounds).items()}


def lengths_of(case: KernelCase) -> torch.Tensor:
    return torch.tensor(case.lengths, dtype=torch.int32, device=DEVICE)


class Pool:
    """A shuffled pool that holds every page of a batch."""

    def __init__(self, case: KernelCase) -> None:
        torch.manual_seed(0)
        self.lengths_B = lengths_of(case)
        self.count_B = (self.lengths_B + SIZE - 1) // SIZE
        self.width = -(-case.length // SIZE)
        total = int(self.count_B.sum())
        order = torch.randperm(total, device=DEVICE, dtype=torch.int32)
        starts_B = self.count_B.cumsum(0) - self.count_B
        at_BW = (starts_B[:, None] + torch.arange(self.width, device=DEVICE)).clamp(max=total - 1)
        self.table_BW = order[at_BW].contiguous()
        shape = (total, HEADS, SIZE, DIM)
        self.k = torch.randn(shape, device=DEVICE, dtype=DTYPE)
        self.v = torch.randn(shape, device=DEVICE, dtype=DTYPE)
        self.q_BND = torch.randn(case.batch, HEADS * case.group, DIM, device=DEVICE, dtype=DTYPE)

    def selected(self, budget: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random pages per KV head in ascending logical order, the last one among them."""
        batch = len(self.lengths_B)
        scores_BKW = torch.rand(batch, HEADS, self.width, device=DEVICE)
        budgets_B = torch.full((batch,), budget, dtype=torch.int32, device=DEVICE)
        return selection.select_pages(
            scores_BKW,
            self.table_BW,
            self.lengths_B,
            budgets_B,
            page_size=SIZE,
            sink_pages=1,
            recent_pages=2,
            max_selected=budget,
        )


DECODE_TUNINGS = [
    attention.DecodeTuning(64, 4, 3, 2),
    attention.DecodeTuning(64, 4, 4, 2),
    attention.DecodeTuning(64, 4, 3, 3),
    attention.DecodeTuning(32, 2, 3, 3),
    attention.DecodeTuning(32, 2, 3, 4),
    attention.DecodeTuning(32, 4, 3, 3),
]
"""The best few of 29 that were tried; the rest lost by 1 % to 60 %."""
SELECT_TUNINGS = [
    *(
        selection.SelectTuning(ScoreTuning(heads, chunk, steps, warps), select_warps)
        for heads, chunk, steps, warps in (
            (8, 8, 1, 4),
            (8, 8, 2, 4),
            (8, 8, 4, 4),
            (8, 16, 1, 4),
            (8, 16, 2, 8),
            (4, 16, 1, 4),
            (2, 32, 1, 4),
            (1, 64, 1, 4),
            (1, 64, 2, 4),
            (1, 128, 1, 8),
        )
        for select_warps in (2, 4)
    ),
]


def our_decode(
    case: KernelCase, pool: Pool, pages: torch.Tensor, counts: torch.Tensor | None, tuning: attention.DecodeTuning
) -> tuple[Callable[[], Any], torch.Tensor]:
    programs = num_programs(DEVICE, tuning.per_processor)
    workspace = attention.decode_workspace(case.batch * HEADS, case.group, DIM, DEVICE, programs)
    out, lse = torch.empty_like(pool.q_BND), torch.empty(pool.q_BND.shape[:2], device=DEVICE)

    def call() -> None:
        attention.paged_decode(
            pool.q_BND,
            pool.k,
            pool.v,
            pages,
            counts,
            pool.lengths_B,
            DIM**-0.5,
            out=out,
            lse=lse,
            workspace=workspace,
            tuning=tuning,
            programs=programs,
        )

    return call, out


def decode_row(case: KernelCase, with_flashinfer: bool, sweep: bool) -> Row:
    pool = Pool(case)
    if case.pages:
        pages_BKJ, counts_BK = pool.selected(case.pages)
        counts: torch.Tensor | None = counts_BK
        kept = int(counts_BK.sum())
    else:
        pages_BKJ = pool.table_BW[:, None].expand(-1, HEADS, -1)
        counts, kept = None, int(pool.count_B.sum()) * HEADS
    call, out = our_decode(case, pool, pages_BKJ, counts, attention.tuning_for(DIM, DTYPE, dense=counts is None))
    competitors: dict[str, list[Callable[[], Any]]] = {"ours": [call] * 4}
    theirs: dict[str, torch.Tensor] = {}
    if with_flashinfer:
        flashinfer, kv = FlashInferDecode(), (pool.k, pool.v)
        for cores in kinds_for(case.group):
            if counts is None:
                run, out_theirs = flashinfer.dense(pool.q_BND, kv, pool.table_BW, pool.lengths_B, cores)
            else:
                run, out_theirs = flashinfer.selected(pool.q_BND, kv, pages_BKJ, counts, pool.lengths_B, cores)
            competitors[f"flashinfer {cores} cores"] = [run] * 4
            theirs[f"flashinfer {cores} cores"] = out_theirs
    times = timed(competitors)
    errors = {
        name: float((other.view_as(out).double() - out.double()).norm() / out.double().norm())
        for name, other in theirs.items()
    }
    extra: dict[str, Any] = {"difference": errors}
    if sweep:
        extra["sweep"] = sweep_decode(case, pool, pages_BKJ, counts, out.clone())
    bytes_moved = kept * SIZE * DIM * 2 * 2
    return Row(case.name, times, bytes_moved / BANDWIDTH * 1e6, {**asdict(case), **extra, "bytes": bytes_moved})


def sweep_decode(
    case: KernelCase, pool: Pool, pages: torch.Tensor, counts: torch.Tensor | None, expected: torch.Tensor
) -> list[dict[str, Any]]:
    results = []
    for tuning in DECODE_TUNINGS:
        try:
            call, out = our_decode(case, pool, pages, counts, tuning)
            call()
            error = float((out.double() - expected.double()).norm() / expected.double().norm())
            results.append({**asdict(tuning), "us": timed({"x": [call] * 4})["x"], "difference": error})
        except triton.runtime.errors.OutOfResources as problem:
            results.append({**asdict(tuning), "error": str(problem)})
    return sorted(results, key=lambda result: float(result.get("us", 1e9)))


def select_row(case: KernelCase, sweep: bool, kind: ScoreKind = "mean") -> Row:
    torch.manual_seed(0)
    lengths_B = lengths_of(case)
    width, copies = -(-case.length // SIZE), 6
    vectors = {"mean": 1, "quest": 2}[kind]
    shape = (case.batch * width, HEADS, vectors, DIM)
    marks = [torch.randn(shape, device=DEVICE, dtype=DTYPE) for _ in range(copies)]
    table_BW = torch.randperm(case.batch * width, device=DEVICE).view(case.batch, width).int()
    q_BND = torch.randn(case.batch, HEADS * case.group, DIM, device=DEVICE, dtype=DTYPE)
    budgets_B = torch.full((case.batch,), case.pages, dtype=torch.int32, device=DEVICE)
    scratch = torch.empty(case.batch * HEADS * width, device=DEVICE)
    out = (
        torch.empty(case.batch, HEADS, case.pages, dtype=torch.int32, device=DEVICE),
        torch.empty(case.batch, HEADS, dtype=torch.int32, device=DEVICE),
    )
    rule = {"page_size": SIZE, "sink_pages": 1, "recent_pages": 2, "max_selected": case.pages}

    def calls(tuning: selection.SelectTuning) -> list[Callable[[], Any]]:
        def one(copy: torch.Tensor) -> Callable[[], Any]:
            return lambda: selection.select_by_landmarks(
                q_BND, copy, table_BW, lengths_B, budgets_B, kind=kind, out=out, scratch=scratch, tuning=tuning,
                **rule,
            )  # fmt: skip

        return [one(copy) for copy in marks]

    scores_BKW = torch.randn(case.batch, HEADS, width, device=DEVICE)
    alone = [lambda: selection.select_pages(scores_BKW, table_BW, lengths_B, budgets_B, **rule)] * 6
    topk = [lambda: scores_BKW.topk(case.pages, dim=-1)] * 6
    times = timed(
        {"ours": calls(selection.tuning_for(DIM, vectors, width)), "selection alone": alone, "torch.topk alone": topk}
    )
    count_B = (lengths_B + SIZE - 1) // SIZE
    scanned = int((count_B - 2).where(count_B > case.pages, 0).sum()) * HEADS * DIM * vectors * 2
    floor = scanned / BANDWIDTH * 1e6
    extra: dict[str, Any] = {**asdict(case), "kind": kind, "bytes": scanned, "bar": 1.3 * floor + 6}
    if sweep:
        extra["sweep"] = sorted(
            ({**asdict(tuning), "us": timed({"x": calls(tuning)})["x"]} for tuning in SELECT_TUNINGS),
            key=lambda result: float(result["us"]),
        )
    return Row(case.name + ("" if kind == "mean" else " " + kind), times, floor, extra)


def append_row(name: str, batch: int, group: int) -> Row:
    case = KernelCase("append", batch, 4096, group)
    pool = Pool(case)
    marks = torch.empty(len(pool.k), HEADS, 1, DIM, device=DEVICE, dtype=DTYPE)
    qkv = torch.randn(case.batch, (case.group + 2) * HEADS, DIM, device=DEVICE, dtype=DTYPE)
    q, k, v = qkv.split([case.group * HEADS, HEADS, HEADS], 1)
    weight = torch.ones(DIM, device=DEVICE, dtype=DTYPE)
    cos_sin = torch.randn(40960, 2 * DIM, device=DEVICE)
    place = (pool.k, pool.v, marks, pool.table_BW, pool.lengths_B)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    normed, rotated = QKNormRope(cos_sin, weight, weight), QKNormRope(cos_sin)
    times = timed(
        {
            "append": [lambda: decode_append(k, v, *place, "mean")] * 20,
            "rope, append": [lambda: decode_norm_rope_append(q, k, v, *place, "mean", rotated, out=out)] * 20,
            "norm, rope, append": [lambda: decode_norm_rope_append(q, k, v, *place, "mean", normed, out=out)] * 20,
        }
    )
    moved = qkv.numel() * 2 * 2 + case.batch * HEADS * DIM * 2 * (SIZE + 1)
    return Row(name, times, moved / BANDWIDTH * 1e6, asdict(case))


def prefill_row(batch: int, chunk: int, context: int, group: int, with_flashinfer: bool) -> Row:
    name = f"prefill B{batch} chunk {chunk} context {context} g{group}"
    case = KernelCase("prefill", batch, context, group)
    pool = Pool(case)
    offsets = (torch.arange(batch + 1, device=DEVICE) * chunk).int()
    q_TND = torch.randn(batch * chunk, HEADS * group, DIM, device=DEVICE, dtype=DTYPE)

    def ours() -> torch.Tensor:
        return paged_prefill(q_TND, pool.k, pool.v, offsets, pool.lengths_B, pool.table_BW, DIM**-0.5, chunk)

    competitors: dict[str, list[Callable[[], Any]]] = {"ours": [ours]}
    difference = 0.0
    if with_flashinfer:
        import flashinfer

        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            torch.zeros(512 << 20, dtype=torch.uint8, device=DEVICE), "HND", backend="fa2"
        )
        count_B = pool.count_B.cpu()
        wrapper.plan(
            offsets.cpu(), torch.cat([count_B.new_zeros(1), count_B.cumsum(0)]).int(), pool.table_BW.flatten(),
            ((pool.lengths_B - 1) % SIZE + 1).cpu(), HEADS * group, HEADS, DIM, SIZE, causal=True, q_data_type=DTYPE,
            kv_data_type=DTYPE,
        )  # fmt: skip
        other = wrapper.run(q_TND, (pool.k, pool.v))
        mine = ours()
        difference = float((other.double() - mine.double()).norm() / mine.double().norm())
        competitors["flashinfer"] = [lambda: wrapper.run(q_TND, (pool.k, pool.v))]
    times = timed(competitors)
    seen = sum(context - chunk + i + 1 for i in range(chunk))
    flops = batch * HEADS * group * seen * DIM * 4
    return Row(name, times, flops / 790e12 * 1e6, {"flops": flops, "difference": difference})


def copy_bandwidth() -> float:
    source = torch.randn(1 << 30, device=DEVICE, dtype=DTYPE)
    target = torch.empty_like(source)
    return 2 * source.numel() * 2 / timed({"copy": [lambda: torch.neg(source, out=target)] * 2})["copy"] * 1e6


def show(row: Row) -> None:
    times = ", ".join(f"{name} {time:.1f}" for name, time in row.microseconds.items())
    print(f"{row.case}: floor {row.floor:.1f} us, bar {row.extra.get('bar', 0):.1f}; {times}", flush=True)
    if row.extra.get("difference"):
        print("   difference", row.extra["difference"], flush=True)
    for result in row.extra.get("sweep", [])[:5]:
        print("   ", result, flush=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sweep", choices=["decode", "select"])
    parser.add_argument("--no-flashinfer", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    with_flashinfer = not options.no_flashinfer
    jobs: list[tuple[str, Callable[[], Row]]] = [
        *((case.name, lambda case=case: select_row(case, options.sweep == "select")) for case in SELECT),
        ("quest", lambda: select_row(SELECT[1], False, "quest")),
        *(
            (case.name, lambda case=case: decode_row(case, with_flashinfer, options.sweep == "decode"))
            for case in SELECTED + DENSE
        ),
        *(
            (name, lambda name=name, batch=batch, group=group: append_row(name, batch, group))
            for name, batch, group in (("append B16 g4", 16, 4), ("append B32 g2", 32, 2), ("append B64 g2", 64, 2))
        ),
        ("prefill", lambda: prefill_row(8, 1024, 1024, 2, with_flashinfer)),
        ("prefill", lambda: prefill_row(1, 2048, 16384, 4, with_flashinfer)),
    ]
    rows = []
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "flashinfer": version("flashinfer-python") if with_flashinfer else None,
        "copy_bandwidth": copy_bandwidth(),
    }
    print(result, flush=True)
    for name, job in jobs:
        if name.startswith(options.only):
            rows.append(job())
            show(rows[-1])
            result["rows"] = [asdict(row) for row in rows]
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
