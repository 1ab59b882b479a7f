"""Kill a training run at random moments, go on each time, and compare it with one that was left alone.

    python benchmarks/kill_resume.py CONFIG.yaml --kills 20 --json benchmarks/results/kill-resume.json

Every kill is SIGKILL to the whole process group. Compared are all logged metrics that do not depend on the clock, and
the final weights, bit for bit. Run it with OMP_NUM_THREADS=1, or at least with the same number of threads throughout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from sparrow_core.train_log import StepRecord, read_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a configuration of `sparrow train`; output is set by this script")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--json", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        whole, killed = Path(work) / "whole", Path(work) / "killed"
        base = [arguments.config, *arguments.overrides, "checkpoint.export=true"]
        started = time.monotonic()
        run([*base, f"output={whole}"]).wait()
        whole_seconds = time.monotonic() - started
        draw = random.Random(arguments.seed)
        moments = []
        for _ in range(arguments.kills):
            moments.append(kill_once([*base, f"output={killed}"], killed, draw, whole_seconds))
            print(json.dumps(moments[-1]), flush=True)
        code = run([*base, f"output={killed}"]).wait()
        result = {"kills": moments, "exit": code, **compare(whole, killed)}
    print(json.dumps({key: value for key, value in result.items() if key != "kills"}))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if not (result["same_metrics"] and result["same_weights"] and code == 0):
        sys.exit(1)


def run(arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sparrow_core.cli", "train", *arguments, "--quiet"]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_once(arguments: list[str], output: Path, draw: random.Random, whole_seconds: float) -> dict[str, Any]:
    """Start, wait for a random time, kill; what was on disk then."""
    process = run(arguments)
    # Short and long waits alike: start-up, mid-rollout, mid-update and mid-save are all hit.
    wait = draw.uniform(0.0, 1.0) * min(whole_seconds, 25.0)
    time.sleep(wait)
    ended = process.poll()
    if ended is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    folder = output / "checkpoints"
    steps = list(folder.glob("step-*")) if folder.exists() else []
    complete = sorted(int(path.name[5:]) for path in steps if (path / ".metadata").exists())
    log = output / "metrics.jsonl"
    return {
        "after_s": round(wait, 3),
        "ended_before": ended is not None,
        "complete": complete[-1:],
        "incomplete": len(steps) - len(complete),
        "logged": log.read_bytes().count(b"\n") if log.exists() else 0,
    }


def compare(whole: Path, killed: Path) -> dict[str, Any]:
    pairs = [read_records(path / "metrics.jsonl") for path in (whole, killed)]
    first, second = (load_file(path / "model" / "model.safetensors") for path in (whole, killed))
    return {
        "steps": len(pairs[0]),
        "same_metrics": [timeless(r) for r in pairs[0]] == [timeless(r) for r in pairs[1]],
        "same_weights": first.keys() == second.keys() and all(first[n].equal(second[n]) for n in first),
    }


def timeless(record: StepRecord) -> dict[str, float]:
    clock = ("time/", "rollout/tokens_per_second")
    return {name: value for name, value in record.metrics.items() if not name.startswith(clock)}


if __name__ == "__main__":
    main()
