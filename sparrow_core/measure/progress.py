"""Progress bars for long work; silent when the output is not a terminal or none is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from sparrow_core.engine.stats import EngineStats


@dataclass(frozen=True, slots=True)
class Progress:
    """Draws on ``console`` (standard error for commands); None draws nothing."""

    console: Console | None
    prefix: str = ""

    def named(self, prefix: str) -> Progress:
        return Progress(self.console, prefix)

    def quiet(self) -> Progress:
        """For work inside a unit of an outer bar."""
        return Progress(None, self.prefix)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar over ``total`` items; call the yielded function with the number done."""
        with self._bar() as bar:
            task = bar.add_task(self._label(name), total=total, note="")
            yield lambda done: bar.update(task, completed=done)

    @contextmanager
    def rollout(self, name: str) -> Iterator[Callable[[EngineStats], None]]:
        """A bar over generated tokens, with speed and the kept fraction; its end moves in as sequences stop early."""
        with self._bar() as bar:
            yield rollout_bar(bar, self._label(name))

    def _label(self, name: str) -> str:
        return f"{self.prefix} {name}".strip()

    def _bar(self) -> RichProgress:
        return bars(self.console)


def bars(console: Console | None) -> RichProgress:
    """Where bars are drawn, one task each; every task needs a ``note`` field."""
    return RichProgress(
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console or Console(quiet=True),
        disable=console is None or not console.is_terminal,
    )


def rollout_bar(bar: RichProgress, label: str) -> Callable[[EngineStats], None]:
    """Add the task of a rollout to ``bar``; call what is returned with the rollout's counters."""
    task = bar.add_task(label, total=None, note="")

    def update(stats: EngineStats) -> None:
        done = stats.finished == stats.num_sequences
        bar.update(
            task,
            total=stats.max_generated_tokens,
            completed=stats.max_generated_tokens if done else stats.generated_tokens,
            note=f"{stats.finished}/{stats.num_sequences} done, {stats.tokens_per_second:.0f} tok/s, "
            f"kept {stats.kept_fraction:.0%}",
        )

    return update
