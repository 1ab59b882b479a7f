"""Trackers: refused by name when missing, and what they are given."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparrow_core.errors import InputError
from sparrow_trainers.run_log import LogConfig, RunLog
from sparrow_trainers.run_log.scalars import scalars
from tests.run_log import records


class FakeTracker(SimpleNamespace):
    """Records what a tracker's module is called with; ``init`` gives the module itself as the run."""

    def __init__(self) -> None:
        super().__init__(calls=[])

    def init(self, **settings: Any) -> FakeTracker:
        self.calls.append(("init", settings))
        return self

    def define_metric(self, name: str, **settings: Any) -> None:
        self.calls.append(("define_metric", name, settings))

    def log(self, values: dict[str, float], **settings: Any) -> None:
        self.calls.append(("log", values, settings))

    def finish(self) -> None:
        self.calls.append(("finish",))


def _config(**trackers: Any) -> LogConfig:
    return LogConfig.model_validate({"trackers": trackers})


@pytest.fixture
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    tracker = FakeTracker()
    monkeypatch.setitem(sys.modules, request.param, tracker)
    return tracker


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_tracker_is_named_with_its_extra(
    name: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"trackers\.{name}=true .*pip install 'sparrow-rollout\[trackers\]'"):
        RunLog(tmp_path / "out", _config(**{name: True}), records.INFO, rank=rank)
    assert not (tmp_path / "out").exists()


def test_no_tracker_is_imported_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
    with RunLog(tmp_path, _config(), records.INFO) as log:
        log.write(records.record(0))


@pytest.mark.parametrize("fake", ["wandb"], indirect=True)
def test_wandb_goes_on_under_its_id(fake: FakeTracker, tmp_path: Path) -> None:
    config = _config(wandb=True, project="p", wandb_mode="offline")
    for step in (0, 1):
        with RunLog(tmp_path, config, records.INFO, start_step=step, settings={"lr": 1e-6}) as log:
            log.write(records.record(step))
    first, again = (call[1] for call in fake.calls if call[0] == "init")
    assert first == again
    assert first["project"] == "p"
    assert first["name"] == tmp_path.name
    assert first["mode"] == "offline"
    assert first["config"] == {"lr": 1e-6}
    logged = [call[1] for call in fake.calls if call[0] == "log"]
    assert logged == [{**scalars(records.record(step)), "step": step} for step in (0, 1)]
    assert fake.calls[-1] == ("finish",)
    with RunLog(tmp_path, config, records.INFO):
        pass
    assert [call[1] for call in fake.calls if call[0] == "init"][-1]["id"] != first["id"]


@pytest.mark.parametrize("fake", ["trackio"], indirect=True)
def test_trackio_gets_scalars_and_steps(fake: FakeTracker, tmp_path: Path) -> None:
    with RunLog(tmp_path, _config(trackio=True, run_name="mine"), records.INFO) as log:
        log.write(records.record(3))
    init, logged, finish = fake.calls
    own_id = (tmp_path / "tracker_id.txt").read_text().strip()
    assert init[1]["name"] == f"mine-{own_id}"
    assert logged == ("log", scalars(records.record(3)), {"step": 3})
    assert finish == ("finish",)


@pytest.mark.parametrize("fake", ["trackio"], indirect=True)
def test_a_tracker_that_fails_to_start_leaves_no_open_log(
    fake: FakeTracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("no network")

    closed: list[str] = []
    monkeypatch.setattr(fake, "init", fail)
    monkeypatch.setattr("sparrow_trainers.run_log.log.MetricsFile.close", lambda self: closed.append("metrics"))
    with pytest.raises(RuntimeError, match="no network"):
        RunLog(tmp_path, _config(trackio=True), records.INFO)
    assert closed == ["metrics"]


def test_scalars_of_a_step() -> None:
    values = scalars(records.record(2))
    bins = records.record(2).bins
    assert values["reward/mean"] == 0.25
    assert values["policy_version"] == 2
    assert values["bins_tail/0000"] == bins[0].tail_lower
    assert values["bins_budget/0500"] == 16
    assert values["bins_tokens/0500"] == 400
    assert not any(name.endswith("/1000") for name in values)
    assert all(isinstance(value, float) for value in values.values())
