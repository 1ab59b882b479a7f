"""The device engine's decode loop: step times at one length, and what a real rollout adds to them.

python benchmarks/engine_gpu.py --model random:qwen3-1.7b --batch 32 --length 16384 --pages 128 --json OUT

In one process, dense beside sparse: median step times at the length; step times along the rollout's lengths,
integrated; and the rollout itself by ``generate``, with the time between the end of a step and the start of the next
one, when the device waits for the host (on a CPU: when the host does anything but the step).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sparrow_core import registry
from sparrow_core.bench.decode import DecodeCase, check_case, free_memory
from sparrow_core.bench.end_to_end import generate, random_requests, warm_up
from sparrow_core.bench.environment import write_result
from sparrow_core.bench.rollout import RolloutCase, integrated
from sparrow_core.bench.setup import BenchSetup, bench_setup
from sparrow_core.bench.steps import DENSE, SPARSE, WITHOUT, StepBench
from sparrow_core.bench.timing import medians
from sparrow_core.contracts import SparsityPolicy
from sparrow_core.engine.build import build_engine, build_policy
from sparrow_core.engine.device_step import DeviceStep, StepKey
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel

KINDS = (DENSE, SPARSE)


class StepClock:
    """Times of a ``DeviceStep``'s steps and of the gaps between them: events on CUDA, the host's clock elsewhere."""

    def __init__(self, step: DeviceStep) -> None:
        self._run = step.run
        self._on_cuda = step.model.device.type == "cuda"
        self._marks: list[tuple[Any, Any]] = []
        self._step = step
        step.run = self.run  # type: ignore[method-assign]

    def run(self, key: StepKey) -> None:
        start = self._mark()
        self._run(key)
        self._marks.append((start, self._mark()))

    def remove(self) -> None:
        self._step.run = self._run  # type: ignore[method-assign]

    def _mark(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _seconds(self, start: Any, end: Any) -> float:
        elapsed: float = start.elapsed_time(end) / 1000 if self._on_cuda else end - start
        return elapsed

    def summary(self) -> dict[str, float]:
        """Seconds in steps and between them; ``idle`` is the share of the time between."""
        steps = [self._seconds(*mark) for mark in self._marks]
        ends = zip(self._marks, self._marks[1:], strict=False)
        gaps = [self._seconds(before[1], after[0]) for before, after in ends]
        return {
            "steps": len(steps),
            "step_seconds": sum(steps),
            "gap_seconds": sum(gaps),
            "median_gap": statistics.median(gaps),
            "largest_gap": max(gaps),
            "idle": sum(gaps) / (sum(steps) + sum(gaps)),
        }


def step_times(
    setup: BenchSetup, model: LanguageModel, case: DecodeCase, prompt: int, points: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Step times at the case's length (medians and rounds), and integrated from the prompt's length to it."""
    bench = StepBench(
        model,
        setup.config.attention,
        setup.config.rollout,
        capacities=[case.length] * case.batch,
        schedule=check_case(case, setup.config.attention),
        names=(DENSE, SPARSE, WITHOUT),
    )
    rounds = bench.time([case.length] * case.batch, setup.timing)
    lengths = [prompt + (case.length - prompt) * i // (points - 1) for i in range(points)]
    along = [medians(bench.time([length] * case.batch, setup.timing)) for length in lengths]
    return (
        {"seconds": medians(rounds), "rounds": rounds},
        {name: integrated(lengths, [seconds[name] for seconds in along]) for name in KINDS},
    )


def rollout_times(
    setup: BenchSetup, model: LanguageModel, case: DecodeCase, prompt: int, name: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the whole rollout, of its prefill and decode; and the clock's summary of its steps.

    Raises InputError when the rollout does not run on the device engine.
    """
    rollout = setup.config.rollout.model_copy(update={"max_batch": case.batch})
    engine = build_engine(model, setup.config.attention, rollout)
    requests = random_requests(model, RolloutCase(case.model, case.batch, case.length, ""), prompt, rollout)
    policy = _policy(setup, case, name)
    warm_up(engine, requests, policy)
    step = engine._device_step
    if step is None:
        raise InputError("rollout.engine chose the host engine; set rollout.engine=device")
    clock = StepClock(step)
    seconds, stats = generate(engine, requests, policy)
    clock.remove()
    whole = {"seconds": seconds, "prefill_seconds": stats.prefill_seconds, "decode_seconds": stats.decode_seconds}
    return whole, clock.summary()


def _policy(setup: BenchSetup, case: DecodeCase, name: str) -> SparsityPolicy:
    settings: dict[str, Any] = {"type": "dense"} if name == DENSE else {"type": "static", "pages": case.pages}
    config = registry.load("sparrow.policies", str(settings["type"])).Config.model_validate(settings)
    return build_policy(config, setup.config.attention.layout)


def measure(setup: BenchSetup, case: DecodeCase, prompt: int, points: int) -> dict[str, Any]:
    if not 1 <= prompt < case.length:
        raise InputError(f"--prompt={prompt} must be between 1 and length - 1 = {case.length - 1}")
    if points < 2:
        raise InputError(f"--points={points} must be at least 2")
    model = setup.load(case.model)
    at_length, along = step_times(setup, model, case, prompt, points)
    free_memory(model.device)
    row: dict[str, Any] = {"case": asdict(case), "prompt": prompt, "step": at_length, "integrated": along}
    for name in KINDS:
        whole, loop = rollout_times(setup, model, case, prompt, name)
        free_memory(model.device)
        row[name] = {**whole, "loop": loop, "over_integrated": whole["seconds"] / along[name]}
    row["speedup"] = {
        "step": at_length["seconds"][DENSE] / at_length["seconds"][SPARSE],
        "rollout": row[DENSE]["seconds"] / row[SPARSE]["seconds"],
    }
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    for name in ("batch", "length", "pages"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt of the rollout")
    parser.add_argument("--points", type=int, default=9, help="lengths at which steps are timed along the rollout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=10, help="steps per round")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("settings", nargs="*", help="key=value of the attention and rollout sections")
    given = parser.parse_args(arguments)
    settings = ["rollout.engine=device", *given.settings]
    setup = bench_setup(None, settings, device=given.device, dtype=given.dtype, timing=(given.rounds, given.repeats))
    case = DecodeCase(given.model, given.batch, given.length, given.pages)
    row = measure(setup, case, given.prompt, given.points)
    write_result(given.json, "engine", setup.as_json(), [row])
    for name in KINDS:
        print(
            f"{name}: step {row['step']['seconds'][name] * 1e3:.2f} ms at {given.length}; rollout "
            f"{row[name]['seconds']:.2f} s, {row[name]['over_integrated']:.3f} x its steps; "
            f"idle between steps {row[name]['loop']['idle']:.2%}"
        )


if __name__ == "__main__":
    main()
