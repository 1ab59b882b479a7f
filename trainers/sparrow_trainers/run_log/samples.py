"""Sample rollouts as text files for reading: ``samples/step-000123.txt``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparrow_core.trace import FinishReason
from sparrow_core.train_log import replace_text
from sparrow_trainers.run_log.config import SamplesConfig

SAMPLES = "samples"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that could steer a terminal, or that UTF-8 cannot hold."""


@dataclass(frozen=True, slots=True)
class SampleText:
    """One sample of a step."""

    prompt_id: str
    prompt: str
    completion: str
    reward: float
    finish_reason: FinishReason
    num_tokens: int
    """Drawn tokens."""
    tail: float | None = None
    """Low quantile of the acceptance over this sample's tokens."""
    note: str = ""
    """Anything else worth a line: parts of the reward, why it failed."""


class SampleFiles:
    """Writes a few samples of every ``config.every``-th step; opening deletes files of ``start_step`` and later."""

    def __init__(self, directory: Path, config: SamplesConfig, start_step: int) -> None:
        self._directory = directory / SAMPLES
        self._config = config
        for path in self._directory.glob("step-*.txt"):
            if int(path.stem.removeprefix("step-")) >= start_step:
                path.unlink()

    def chosen(self, step: int, num_samples: int) -> list[int]:
        """Which of a step's samples to write, ascending; empty on the steps between."""
        if not self._config.every or step % self._config.every:
            return []
        count = min(self._config.count, num_samples)
        return [index * num_samples // count for index in range(count)]

    def write(self, step: int, samples: Sequence[SampleText]) -> Path:
        path = self._directory / f"step-{step:06d}.txt"
        parts = [_text(step, number, len(samples), sample) for number, sample in enumerate(samples, 1)]
        replace_text(path, "\n".join(parts))
        return path


def _text(step: int, number: int, total: int, sample: SampleText) -> str:
    facts = [
        f"prompt id  {sample.prompt_id}",
        f"reward     {sample.reward:.6g}",
        f"finished   {sample.finish_reason}, {sample.num_tokens} tokens",
        f"tail       {'not measured' if sample.tail is None else format(sample.tail, '.4f')}",
    ]
    if sample.note:
        facts.append(f"note       {sample.note}")
    parts = [
        f"{f' step {step}, sample {number} of {total} ':=^100}",
        *facts,
        f"{' prompt ':-^100}",
        sample.prompt,
        f"{' completion ':-^100}",
        sample.completion,
    ]
    return _visible("\n".join(parts)) + "\n"


def _visible(text: str) -> str:
    """Control characters but line ends and tabs as escapes such as ``\\x1b``."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
