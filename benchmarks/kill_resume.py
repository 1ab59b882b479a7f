"""Kill a training run at random moments, go on each time, and hold it against one that was left alone.

    OMP_NUM_THREADS=1 python benchmarks/kill_resume.py CONFIG.yaml --kills 20 --json benchmarks/results/kill-resume.json

The trainer's process gets SIGKILL, by turns at a random time from its start (so in start-up or restoring too), at a
random time after its first step, and while a checkpoint is being written. After every kill

* all checkpoints that count as complete are read back whole, and hold the step of their name;
* every step in the log, and every sample's text, is that of the undisturbed run, the clock's metrics aside;
* the steps that are logged beyond the last complete checkpoint, which will be done again, are counted;
* nothing that the run started may still be there five seconds later.

At the end the whole log, all texts and the exported weights must be equal bit for bit. Keep the number of threads the
same throughout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from sparrow_core.train_log import StepRecord, read_records
from sparrow_trainers.titan.checkpoints import FOLDER, complete_steps

MARK = "SPARROW_KILL_RESUME"
"""Environment variable by which a run's processes are found."""
AIMS = ("from start", "after a step", "while saving")


@dataclass
class Kill:
    """One kill and what it left."""

    aim: str
    after_s: float
    """From the start of the process."""
    ended_before: bool
    complete: int
    """Step of the latest complete checkpoint; 0 is none."""
    incomplete: int
    """Directories of checkpoints that do not count."""
    logged: int
    """Steps in the log."""
    redo: int
    """Logged steps beyond the latest complete checkpoint."""
    left_over: int
    """Processes of the run five seconds later."""
    wrong: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a configuration of `sparrow train`; output is set by this script")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--span", type=float, default=4.0, help="seconds after a first step within which is killed")
    parser.add_argument("--json", type=Path, help="write the result here too")
    arguments = parser.parse_intermixed_args()
    warnings.filterwarnings("ignore", message="torch.distributed is unavailable")
    base = [arguments.config, *arguments.overrides, "checkpoint.export=true"]
    base += ["log.samples.every=1", "log.samples.count=1000000"]
    with tempfile.TemporaryDirectory() as work:
        whole, killed = Path(work) / "whole", Path(work) / "killed"
        startup, seconds = undisturbed([*base, f"output={whole}"], whole)
        draw = random.Random(arguments.seed)
        kills = []
        for number in range(arguments.kills):
            aim = AIMS[number % len(AIMS)]
            command = [*base, f"output={killed}"]
            kill = kill_once(command, aim, draw, startup, arguments.span, killed, whole)
            print(json.dumps(asdict(kill)), flush=True)
            if kill.ended_before:
                sys.exit(f"the run ended before kill {number + 1}; raise train.steps")
            kills.append(kill)
        code = run([*base, f"output={killed}"]).wait()
        result = {
            "command": " ".join(["benchmarks/kill_resume.py", *sys.argv[1:]]),
            "startup_s": round(startup, 2),
            "undisturbed_s": round(seconds, 2),
            "steps": len(records(whole)),
            "max_redo": max(each.redo for each in kills),
            "incomplete_left": sum(each.incomplete for each in kills),
            "exit": code,
            "wrong": sorted({text for each in kills for text in each.wrong} | set(differences(killed, whole, True))),
            "kills": [asdict(each) for each in kills],
        }
    print(json.dumps({key: value for key, value in result.items() if key != "kills"}))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if result["wrong"] or code != 0:
        sys.exit(1)


def run(arguments: list[str], mark: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sparrow_core.cli", "train", *arguments, "--quiet"]
    return subprocess.Popen(
        command, env=os.environ | {MARK: mark}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def undisturbed(arguments: list[str], output: Path) -> tuple[float, float]:
    """Seconds to the first logged step, and of the whole run."""
    started = time.monotonic()
    process = run(arguments)
    wait_until(process, lambda: num_logged(output) > 0)
    first = time.monotonic() - started
    if process.wait() != 0:
        sys.exit(f"the undisturbed run ended with {process.returncode}; try: sparrow train {' '.join(arguments)}")
    return first, time.monotonic() - started


def kill_once(
    arguments: list[str], aim: str, draw: random.Random, startup: float, span: float, output: Path, whole: Path
) -> Kill:
    """Start, wait for the moment, kill; what was on disk then."""
    mark = uuid.uuid4().hex
    started = time.monotonic()
    before, clock = num_logged(output), time.time()
    process = run(arguments, mark)
    if aim == "from start":
        wait_until(process, lambda: False, draw.uniform(0.0, startup))
    elif aim == "after a step":
        # A resumed run cuts the log back to its checkpoint first.
        resumed = max([0, *complete_steps(output)])
        wait_until(process, lambda: num_logged(output) < before or resumed == before)
        wait_until(process, lambda: num_logged(output) > resumed)
        wait_until(process, lambda: False, draw.uniform(0.0, span))
    else:
        last = max([0, *complete_steps(output)])
        wait_until(process, lambda: any(is_written(path, clock, last) for path in directories(output)), pause=0.0005)
        wait_until(process, lambda: False, draw.uniform(0.0, 0.02), pause=0.0005)
    after = time.monotonic() - started
    ended = process.poll() is not None
    process.kill()
    process.wait()
    time.sleep(5)
    left = processes(mark)
    complete = complete_steps(output)
    wrong = [f"step-{step}: {text}" for step in complete if (text := unreadable(output / FOLDER, step))]
    wrong += differences(output, whole, False)
    wrong += [f"process {pid} is still there" for pid in left]
    last, logged = max([0, *complete]), num_logged(output)
    return Kill(
        aim=aim,
        after_s=round(after, 3),
        ended_before=ended,
        complete=last,
        incomplete=len(directories(output)) - len(complete),
        logged=logged,
        redo=max(0, logged - last),
        left_over=len(left),
        wrong=wrong,
    )


def wait_until(process: subprocess.Popen[bytes], done: Any, seconds: float = 600.0, pause: float = 0.005) -> None:
    """Until ``done()``, the end of ``process``, or ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None and not done():
        time.sleep(min(pause, max(0.0, until - time.monotonic())))


def directories(output: Path) -> list[Path]:
    return list((output / FOLDER).glob("step-*"))


def is_written(path: Path, since: float, last: int) -> bool:
    """A checkpoint beyond step ``last`` that is not complete, and was touched after ``since``."""
    if int(path.name.removeprefix("step-")) <= last:
        return False
    try:
        return not (path / ".metadata").exists() and path.stat().st_mtime > since
    except FileNotFoundError:
        return False


def num_logged(output: Path) -> int:
    log = output / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def processes(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def unreadable(folder: Path, step: int) -> str:
    """Why the checkpoint cannot be read back whole; empty when it can."""
    try:
        state: Any = _load_state_dict_from_keys(checkpoint_id=str(folder / f"step-{step}"))
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, CheckpointException) as error:
        return f"{type(error).__name__}: {error}"
    inside = json.loads(state["sparrow"]["json"])["step"]
    return "" if inside == step else f"holds step {inside}"


def differences(output: Path, whole: Path, is_finished: bool) -> list[str]:
    """What of ``output`` is not as in ``whole``; of a run that has not finished, what is there so far."""
    ours, theirs = records(output), records(whole)
    wrong = [f"logged step {step}" for step, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]]
    names = {path.name for path in (output / "samples").glob("step-*.txt")}
    for name in sorted(names):
        if (output / "samples" / name).read_bytes() != (whole / "samples" / name).read_bytes():
            wrong.append(f"samples of {name}")
    if is_finished:
        if len(ours) != len(theirs) or len(names) != len(theirs):
            wrong.append(f"{len(ours)} steps and {len(names)} files of samples for {len(theirs)} steps")
        first, second = (load_file(path / "model" / "model.safetensors") for path in (whole, output))
        if first.keys() != second.keys() or not all(first[name].equal(second[name]) for name in first):
            wrong.append("weights")
    return wrong


def records(output: Path) -> list[tuple[Any, ...]]:
    path = output / "metrics.jsonl"
    return [timeless(record) for record in read_records(path)] if path.exists() else []


def timeless(record: StepRecord) -> tuple[Any, ...]:
    clock = ("time/", "rollout/tokens_per_second")
    metrics = {name: value for name, value in record.metrics.items() if not name.startswith(clock)}
    return record.step, record.policy_version, metrics, record.bins


if __name__ == "__main__":
    main()
