"""Progress of a training run: a bar over steps, and under it one over the tokens of the rollout that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from sparrow_core.engine.stats import EngineStats
from sparrow_core.measure.progress import bars, rollout_bar
from sparrow_core.train_log import BinRecord, StepRecord

_PARTS = (
    ("reward/mean", "reward {:.3f}"),
    ("response/length_mean", "length {:.0f}"),
    ("distill/loss", "distillation {:.4f}"),
    ("mismatch/kept_fraction", "kept {:.0%}"),
    ("rollout/tokens_per_second", "{:,.0f} tok/s"),
)


class TrainProgress:
    """Draws on ``console``: bars where it is a terminal, a line per step where it is a file; None draws nothing."""

    def __init__(self, console: Console | None, label: str = "training") -> None:
        self._label = label
        self._console = console
        self._bars = bars(console)

    @contextmanager
    def steps(self, total: int, start: int = 0) -> Iterator[Callable[[StepRecord], None]]:
        """A bar over ``total`` steps of which ``start`` are done; call what is yielded with each step's record."""
        with self._bars:
            task = self._bars.add_task(self._label, total=total, completed=start, note="")

            def update(record: StepRecord) -> None:
                self._bars.update(task, completed=record.step + 1, note=summary(record))
                if self._console is not None and not self._console.is_terminal:
                    self._console.print(f"step {record.step + 1}/{total}: {summary(record)}", markup=False)

            yield update

    @contextmanager
    def rollout(self, step: int) -> Iterator[Callable[[EngineStats], None]]:
        """A bar over a rollout's tokens below that of the steps, gone when the rollout has ended."""
        before = set(self._bars.task_ids)
        try:
            yield rollout_bar(self._bars, f"rollout of step {step + 1}")
        finally:
            for task in set(self._bars.task_ids) - before:
                self._bars.remove_task(task)


def summary(record: StepRecord) -> str:
    """A step in one line: reward, response length, worst tail, kept fraction, speed; what is not known is left out."""
    parts = [text.format(record.metrics[name]) for name, text in _PARTS if name in record.metrics]
    worst = worst_tail(record.bins)
    if worst is not None:
        parts.insert(min(2, len(parts)), f"tail {worst:.3f}")
    return ", ".join(parts)


def worst_tail(bins: tuple[BinRecord, ...]) -> float | None:
    """Lowest tail of any bin with tokens; the exact one where it is known, else the lower bound's."""
    tails = [each.tail_lower if each.tail_exact is None else each.tail_exact for each in bins]
    return min((tail for tail in tails if tail is not None), default=None)
