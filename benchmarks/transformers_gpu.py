"""Decode steps of transformers (static cache, whole forward compiled) beside ours, at the same sizes, in one process.

    python benchmarks/transformers_gpu.py --case random:qwen3-1.7b:32:16384:128 --json OUT rollout.engine=device

A step of transformers is what its ``generate`` repeats: the forward over a full static cache, and the argmax; its
keys and values are random, as ours are. Ours is timed dense and sparse with sampling and records, and its memory is
given back before the other starts.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

from sparrow_core.bench.decode import DecodeCase, bench_decode, cases_of, free_memory
from sparrow_core.bench.environment import write_result
from sparrow_core.bench.setup import BenchSetup, bench_setup
from sparrow_core.bench.steps import DENSE, SPARSE
from sparrow_core.bench.timing import medians, time_rounds
from sparrow_core.errors import InputError
from sparrow_core.model.presets import RANDOM, random_config

THEIRS = "transformers"


class TransformersStep:
    """One greedy decode step of a random model over a static cache that is full up to its last page of tokens."""

    def __init__(self, case: DecodeCase, setup: BenchSetup, mode: str) -> None:
        _, given = random_config(case.model)
        settings = dict(given)
        config = AutoConfig.for_model(settings.pop("model_type"), **settings)
        config._attn_implementation = "sdpa"
        with torch.device(setup.device):
            model = AutoModelForCausalLM.from_config(config, dtype=setup.dtype)
        self.model = model.eval()
        self.cache = StaticCache(config=config, max_cache_len=case.length)
        self.tokens = torch.zeros(case.batch, 1, dtype=torch.long, device=setup.device)
        self._filled = case.length - setup.timing.repeats - 2
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._forward: Callable[..., Any] = torch.compile(model.forward, mode=mode, dynamic=False)
        with torch.no_grad():
            model(self.tokens, **{self._cache_name: self.cache}, use_cache=True)
            for layer in self.cache.layers:
                layer.keys.normal_()
                layer.values.normal_()
        self.reset()

    def reset(self) -> None:
        """Back to the length at which the timed steps begin."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self._filled)

    def __call__(self) -> None:
        with torch.no_grad():
            out = self._forward(self.tokens, **{self._cache_name: self.cache}, use_cache=True)
            self.tokens.copy_(out.logits[:, -1:].argmax(-1))


def measure(setup: BenchSetup, case: DecodeCase, mode: str) -> dict[str, Any]:
    config = setup.config
    (ours,) = bench_decode(
        [case], setup.load, config.attention, config.rollout, bandwidth=setup.bandwidth, timing=setup.timing
    )
    free_memory(setup.device)
    step = TransformersStep(case, setup, mode)
    timing = setup.timing
    rounds = time_rounds({THEIRS: step}, setup.device, rounds=timing.rounds, repeats=timing.repeats, reset=step.reset)
    seconds = {DENSE: ours.seconds[DENSE], SPARSE: ours.seconds[SPARSE], **medians(rounds)}
    del step
    free_memory(setup.device)
    return {
        "case": asdict(case),
        "seconds": seconds,
        "rounds": {**ours.rounds, **rounds},
        "over": {name: seconds[THEIRS] / seconds[name] for name in (DENSE, SPARSE)},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", required=True, help="MODEL:BATCH:LENGTH:PAGES; may repeat")
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile for transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="steps per round")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("settings", nargs="*", help="key=value of the attention and rollout sections")
    given = parser.parse_args(arguments)
    setup = bench_setup(
        None, given.settings, device=given.device, dtype=given.dtype, timing=(given.rounds, given.repeats)
    )
    cases = cases_of([], [], [], [], given.case)
    for case in cases:
        if not case.model.startswith(RANDOM):
            raise InputError(f"--case={case.model!r} must be a {RANDOM} model: weights are random on both sides")
    rows = []
    for case in cases:
        rows.append(measure(setup, case, given.mode))
        write_result(given.json, "transformers", setup.as_json(), rows)
        seconds = {name: f"{value * 1e3:.2f} ms" for name, value in rows[-1]["seconds"].items()}
        print(f"{case}: {seconds}; transformers over ours {rows[-1]['over']}", flush=True)


if __name__ == "__main__":
    main()
