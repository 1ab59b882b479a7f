"""A run's log through resumes and kills: every step once, only on rank 0, sample texts for reading."""

from __future__ import annotations

import logging
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparrow_core.errors import InputError
from sparrow_core.train_log import METRICS, RunInfo, StepRecord, read_records
from sparrow_trainers.run_log import LogConfig, RunLog, SampleText
from tests.run_log import records

CONFIG = LogConfig.model_validate({"samples": {"every": 2, "count": 3}})


def _log(directory: Path, start_step: int = 0, config: LogConfig = CONFIG, info: RunInfo = records.INFO) -> RunLog:
    return RunLog(directory, config, info, start_step=start_step)


def _run(directory: Path, steps: range, bonus: float = 0.0) -> None:
    with _log(directory, steps.start) as log:
        for step in steps:
            log.write(records.record(step, **{"reward/mean": step + bonus}))
            log.write_samples(step, 5, lambda index: _sample(f"prompt-{index}"))


def _sample(prompt_id: str, completion: str = "42") -> SampleText:
    return SampleText(prompt_id, "What is 6 x 7?", completion, 1.0, "stop", 3, tail=0.91)


def _rewards(directory: Path) -> list[tuple[int, float]]:
    return [(r.step, r.metrics["reward/mean"]) for r in read_records(directory / METRICS)]


def _tensorboard(directory: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@contextmanager
def _no_more_than(size: int) -> Iterator[None]:
    """The system refuses a file's bytes beyond ``size`` as it does on a full disk; those before are written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_resumed_run_has_every_step_once(tmp_path: Path) -> None:
    _run(tmp_path, range(5))
    _run(tmp_path, range(3, 6), bonus=100)
    expected = [(0, 0), (1, 1), (2, 2), (3, 103), (4, 104), (5, 105)]
    assert _rewards(tmp_path) == expected
    assert _tensorboard(tmp_path, "reward/mean") == expected


def test_samples_of_steps_that_are_done_again_go(tmp_path: Path) -> None:
    _run(tmp_path, range(5))
    names = [path.name for path in sorted((tmp_path / "samples").iterdir())]
    assert names == ["step-000000.txt", "step-000002.txt", "step-000004.txt"]
    with _log(tmp_path, 2):
        assert [path.name for path in (tmp_path / "samples").iterdir()] == ["step-000000.txt"]


def test_whatever_a_kill_left_of_the_last_line_is_repaired(tmp_path: Path) -> None:
    _run(tmp_path, range(2))
    whole = (tmp_path / METRICS).read_bytes()
    start = whole.index(b"\n") + 1
    for cut in range(start, len(whole), 37):
        (tmp_path / METRICS).write_bytes(whole[:cut])
        _run(tmp_path, range(1, 2))
        assert (tmp_path / METRICS).read_bytes() == whole


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    code = (
        "import sys, itertools; from pathlib import Path; from tests.run_log import records\n"
        "from sparrow_trainers.run_log import LogConfig, RunLog\n"
        "log = RunLog(Path(sys.argv[1]), LogConfig(), records.INFO)\n"
        "for step in itertools.count(): log.write(records.record(step)); print(step, flush=True)\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    while int(process.stdout.readline()) < 3:
        pass
    time.sleep(0.013)
    process.send_signal(signal.SIGKILL)
    last = max([3, *map(int, process.stdout.read().split())])
    assert process.wait() == -signal.SIGKILL
    assert len(read_records(tmp_path / METRICS)) >= last + 1
    time.sleep(1)  # event files sort by the second in which they were opened
    _run(tmp_path, range(2, 4), bonus=100)
    assert [step for step, _ in _rewards(tmp_path)] == [0, 1, 2, 3]
    assert _tensorboard(tmp_path, "reward/mean") == [(0, 0), (1, 0.125), (2, 102), (3, 103)]


def test_a_line_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    with _log(tmp_path) as log:
        log.write(records.record(0))
        assert len(read_records(tmp_path / METRICS)) == 1


def test_bins_are_scalars_of_tensorboard(tmp_path: Path) -> None:
    _run(tmp_path, range(1))
    bins = records.record(0).bins
    assert _tensorboard(tmp_path, "bins_tail/0500") == [(0, pytest.approx(bins[1].tail_lower))]
    assert _tensorboard(tmp_path, "bins_budget/0000") == [(0, 8)]
    with pytest.raises(KeyError):
        _tensorboard(tmp_path, "bins_budget/1000")


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    with RunLog(tmp_path / "out", CONFIG, records.INFO, rank=1) as log:
        log.write(records.record(0))
        log.write_samples(0, 5, lambda index: pytest.fail("asked for a sample"))
    assert not (tmp_path / "out").exists()


def test_another_run_is_not_overwritten(tmp_path: Path) -> None:
    _run(tmp_path, range(2))
    other = RunInfo("another", "dense", 0.86, 0.05, 500)
    with pytest.raises(InputError, match="holds the log of another training run"):
        _log(tmp_path, info=other)
    assert len(_rewards(tmp_path)) == 2
    _run(tmp_path, range(1))
    assert len(_rewards(tmp_path)) == 1


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        _log(tmp_path / "file")


def test_a_full_disk_is_named_and_the_log_can_be_gone_on_with(tmp_path: Path) -> None:
    _run(tmp_path, range(2))
    with _log(tmp_path, 2) as log:
        log.write(records.record(2))
        with _no_more_than((tmp_path / METRICS).stat().st_size + 10), pytest.raises(InputError, match="free space"):
            log.write(records.record(3))
    _run(tmp_path, range(3, 4))
    assert [step for step, _ in _rewards(tmp_path)] == [0, 1, 2, 3]


def test_metrics_that_are_not_finite_are_named_in_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with _log(tmp_path) as log, caplog.at_level(logging.WARNING):
        log.write(StepRecord(7, 7, {"kl": math.inf, "reward/mean": 0.5}))
    assert [record.getMessage() for record in caplog.records] == ["step 7 has metrics that are not finite: kl=inf"]


def test_samples_are_spread_over_the_step(tmp_path: Path) -> None:
    _run(tmp_path, range(1))
    text = (tmp_path / "samples" / "step-000000.txt").read_text()
    assert [f"prompt-{i}" in text for i in range(5)] == [True, True, False, True, False]
    for part in ("sample 3 of 3", "What is 6 x 7?", "42", "reward     1", "stop, 3 tokens", "0.9100"):
        assert part in text


def test_fewer_samples_than_asked_for_and_none(tmp_path: Path) -> None:
    with _log(tmp_path) as log:
        log.write_samples(0, 2, lambda index: _sample(str(index)))
        log.write_samples(2, 0, lambda index: pytest.fail("there is none"))
    assert "sample 2 of 2" in (tmp_path / "samples" / "step-000000.txt").read_text()
    assert not (tmp_path / "samples" / "step-000002.txt").exists()
    off = LogConfig.model_validate({"samples": {"every": 0}})
    with _log(tmp_path / "off", config=off) as log:
        log.write_samples(0, 2, lambda index: pytest.fail("samples are off"))


def test_a_sample_cannot_steer_the_terminal(tmp_path: Path) -> None:
    with _log(tmp_path) as log:
        log.write_samples(0, 1, lambda index: _sample("p", "red \x1b[31m\r\x00 tab\tline\nß 漢 \ud800"))
    text = (tmp_path / "samples" / "step-000000.txt").read_text(encoding="utf-8")
    assert "red \\x1b[31m\\r\\x00 tab\tline\nß 漢 \\ud800" in text
