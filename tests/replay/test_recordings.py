"""Loading recorded traces: what may be mixed, and how it is said when it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparrow_core.errors import InputError
from sparrow_core.replay.recordings import load_recordings
from sparrow_core.trace import TraceSet
from tests.replay.recorded import meta, trace, write_units


def test_units_are_one_rollout_per_budget(tmp_path: Path) -> None:
    recordings = load_recordings(write_units(tmp_path, (8, 16, 32), prompts=2, tokens=400))
    assert [len(r.lengths_T) for r in recordings.rollouts] == [800] * 3
    assert [int(r.pages_T.max()) for r in recordings.rollouts] == [8, 16, 27]
    assert recordings.layout.page_size == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"model": "other"}, r"model='synthetic' in .*, 'other' in ", id="model"),
        pytest.param({"page_size": 32}, r"page_size=16 in .*, 32 in ", id="page size"),
        pytest.param({"sink_pages": 2}, r"sink_pages=1 in .*, 2 in ", id="sink pages"),
        pytest.param({"dense_layers": (0,)}, r"dense_layers=\(0, 1\) in .*, \(0,\) in ", id="dense layers"),
    ],
)
def test_traces_that_differ_are_refused_by_name(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    TraceSet([trace(8, tokens=50)], meta()).save(tmp_path / "a")
    TraceSet([trace(8, tokens=50)], meta(**changes)).save(tmp_path / "b")
    with pytest.raises(InputError, match=message):
        load_recordings(tmp_path)


def test_traces_of_two_temperatures_are_refused(tmp_path: Path) -> None:
    TraceSet([trace(8, tokens=50), trace(8, tokens=50, temperature=0.6)], meta()).save(tmp_path)
    with pytest.raises(InputError, match=r"temperatures 0\.6, 1\.0"):
        load_recordings(tmp_path)


def test_one_of_several_selectors_has_to_be_named(tmp_path: Path) -> None:
    write_units(tmp_path, (8, 16), prompts=1, selector="quest", tokens=50)
    write_units(tmp_path, (8, 16), prompts=1, selector="window", tokens=50)
    with pytest.raises(InputError, match=r"selectors quest, window; set selector=quest"):
        load_recordings(tmp_path)
    assert load_recordings(tmp_path, "window").meta.selector == "window"
    with pytest.raises(InputError, match=r"selector='oracle' has no traces .* quest, window"):
        load_recordings(tmp_path, "oracle")


def test_dense_texts_of_a_calibration_are_left_out(tmp_path: Path) -> None:
    write_units(tmp_path, (8,), prompts=1, tokens=50)
    TraceSet([trace(8, tokens=50, scored=False)], meta(policy="dense")).save(tmp_path / "units" / "dense" / "00000")
    assert len(load_recordings(tmp_path).rollouts) == 1


def test_unscored_traces_are_refused(tmp_path: Path) -> None:
    TraceSet([trace(8, tokens=50, scored=False)], meta()).save(tmp_path)
    with pytest.raises(InputError, match="no dense scores"):
        load_recordings(tmp_path)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_directory_without_traces_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"is no directory|holds no traces\.json"):
        load_recordings(tmp_path / name)
