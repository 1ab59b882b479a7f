"""Timing decode steps by batch, length and budget on the machine at hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sparrow_core.cache import DecodeBatch, PagedKVCache
from sparrow_core.config import AttentionConfig, RolloutConfig
from sparrow_core.engine.build import build_engine
from sparrow_core.engine.session import RolloutSession
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel


def time_steps(
    model: LanguageModel,
    attention: AttentionConfig,
    *,
    batches: Sequence[int],
    lengths: Sequence[int],
    budgets: Sequence[int],
    repeats: int,
    on_row: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Median seconds of whole decode steps (model, attention, logits) over random keys and values.

    Returns one row ``{batch, length, pages, seconds}`` per batch, length and budget that is smaller than the
    length's pages, and one dense row (``pages`` None) per batch and length.
    """
    if repeats < 1:
        raise InputError(f"repeats={repeats} must be at least 1")
    beyond = [length for length in lengths if not 1 <= length <= model.context_length]
    if beyond:
        raise InputError(f"lengths has {beyond[0]}, outside {model.name}'s context of {model.context_length} tokens")
    size = attention.page_size
    rows = []
    with torch.no_grad():
        for batch in batches:
            width = -(-max(lengths) // size)
            session = _session(model, attention, num_pages=batch * width)
            for length in lengths:
                num_pages = -(-length // size)
                for pages in [None, *(b for b in budgets if b < num_pages)]:
                    step = _step(model, session, batch, length, pages or num_pages, size)
                    rows.append({"batch": batch, "length": length, "pages": pages, "seconds": _median(step, repeats)})
                    on_row(len(rows))
    return rows


def num_rows(batches: Sequence[int], lengths: Sequence[int], budgets: Sequence[int], page_size: int) -> int:
    """How many rows ``time_steps`` gives."""
    return len(batches) * sum(1 + sum(b < -(-length // page_size) for b in budgets) for length in lengths)


def _session(model: LanguageModel, attention: AttentionConfig, *, num_pages: int) -> RolloutSession:
    engine = build_engine(model, attention, RolloutConfig())
    session = engine.session_for(num_pages)
    generator = torch.Generator(device=model.device).manual_seed(0)
    cache: PagedKVCache = session.cache
    for tensor in (cache.k, cache.v, cache.landmarks):
        tensor.normal_(generator=generator)
    return session


def _step(
    model: LanguageModel, session: RolloutSession, batch: int, length: int, pages: int, page_size: int
) -> Callable[[], None]:
    device, width = model.device, -(-length // page_size)
    decode = DecodeBatch(
        lengths_B=torch.full((batch,), length, dtype=torch.int32, device=device),
        page_table_BW=torch.arange(batch * width, dtype=torch.int32, device=device).view(batch, width),
        budgets_B=torch.full((batch,), pages, dtype=torch.int32, device=device),
        max_length=length,
        max_budget=min(pages, width),
    )
    tokens_B1 = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    positions_B1 = torch.full((batch, 1), length - 1, device=device)

    def run() -> None:
        session.begin(decode, all_dense=pages >= width)
        with model.bind(session):
            model.logits(model.hidden(tokens_B1, positions_B1)[:, 0])
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def _median(step: Callable[[], None], repeats: int) -> float:
    step()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
