"""What is read from run directories, and how a bad one is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sparrow_core.cli import main
from sparrow_core.errors import InputError
from sparrow_core.report.figures import pareto_front
from sparrow_core.report.report import write_report
from sparrow_core.report.runs import read_runs
from sparrow_core.trace import TraceSet
from tests.replay.recorded import meta, trace

Capture = pytest.CaptureFixture[str]


def test_a_schedule_is_judged_by_the_budgets_it_uses(run_dirs: dict[str, Path]) -> None:
    (run,) = read_runs([run_dirs["calibration"]])
    scheduled = run.scheduled[0]
    safe = [c for c in run.configurations if c.selector == "mean_landmark" and (c.worst_tail or 0) >= 0.8]
    cheapest = min(kept for c in safe if (kept := c.kept(run.bin_tokens)) is not None)
    kept = scheduled.kept(run.bin_tokens)
    assert scheduled.worst_tail is not None
    assert kept is not None
    assert scheduled.worst_tail >= 0.8
    assert kept < cheapest


def test_histograms_are_of_the_named_budget(run_dirs: dict[str, Path]) -> None:
    (run,) = read_runs([run_dirs["calibration"]])
    assert [h.label for h in run.histograms] == [f"mean_landmark, {b} pages" for b in (6, 12, 32, 64)]
    shares = [1 - h.sketch.fraction_above_0999 for h in run.histograms]
    assert shares == sorted(shares, reverse=True)


def test_a_measured_run_is_read_from_its_traces(run_dirs: dict[str, Path]) -> None:
    (run,) = read_runs([run_dirs["measured"]])
    expected = TraceSet.load(run_dirs["measured"]).mismatch(bin_tokens=500, num_bins=4)
    assert [b.tail for b in run.configurations[0].bins] == [b.tail_lower for b in expected.bins()]
    assert run.configurations[0].label == "static, 8 pages"
    assert run.histograms[0].sketch.count == expected.total


def test_exact_tails_are_shown_where_they_were_asked_for(tmp_path: Path) -> None:
    config = {"mismatch": {"bin_tokens": 500, "num_bins": 4, "exact": True}, "policy": {"type": "static", "pages": 8}}
    TraceSet([trace(8, exact=True)], meta(policy="static", config=config)).save(tmp_path)
    (run,) = read_runs([tmp_path])
    stream = TraceSet.load(tmp_path).mismatch(bin_tokens=500, num_bins=4)
    assert run.bound == "exact"
    assert [b.tail for b in run.configurations[0].bins] == [b.tail_exact for b in stream.bins()]


def test_a_directory_of_runs_gives_each_of_them(run_dirs: dict[str, Path]) -> None:
    runs = read_runs([run_dirs["replay"]])
    assert [run.name for run in runs] == ["replay/0-TailThresholdPolicy-tau-0.8", "replay/1-static-pages-16"]
    assert all(run.loop is not None and len(run.loop.observations) == 8 for run in runs)


def test_dense_budgets_are_read_in_words_and_numbers(tmp_path: Path) -> None:
    stats = {"lo": 0, "hi": 500, "tokens": 9, "mean": 1, "tail_lower": 1, "tail_interval": None, "kept_fraction": 1}
    row = {"step": 0, "policy": "p", "tau": 0.9, "bins": [stats]}
    rows = [
        {**row, "step": i, "schedule": {"pages": [4, p], "bin_tokens": 500}} for i, p in enumerate(["dense", 2**31 - 1])
    ]
    (tmp_path / "observations.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (run,) = read_runs([tmp_path])
    assert run.loop is not None
    assert [o.schedule.pages for o in run.loop.observations] == [(4, None), (4, None)]
    write_report([tmp_path], tmp_path / "r.html")


def test_the_pareto_front_holds_what_no_other_point_beats() -> None:
    points = [(0.5, 0.9), (0.2, 0.7), (0.3, 0.65), (0.5, 0.85), (0.9, 0.9), (0.1, 0.5)]
    assert pareto_front(points) == [5, 1, 0]


def _missing(path: Path) -> None:
    shutil.rmtree(path)


def _unfinished(path: Path) -> None:
    (path / "calibration.json").unlink()


def _cut(path: Path) -> None:
    text = (path / "calibration.json").read_text()
    (path / "calibration.json").write_text(text[: len(text) // 2])


def _other(path: Path) -> None:
    (path / "calibration.json").write_text('{"tau": "high"}')


def _empty(path: Path) -> None:
    _missing(path)
    path.mkdir()


def _unscored(path: Path) -> None:
    _empty(path)
    TraceSet([trace(8, tokens=9, scored=False)], meta(policy="static")).save(path)


def _bad_line(path: Path) -> None:
    _empty(path)
    (path / "observations.jsonl").write_text('{"step": 0}\n')


def _no_line(path: Path) -> None:
    _empty(path)
    (path / "observations.jsonl").write_text("\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(_missing, "is no directory", id="missing"),
        pytest.param(_empty, "holds no run", id="empty"),
        pytest.param(_unfinished, "not finished .* sparrow calibrate", id="unfinished"),
        pytest.param(_cut, "is not whole JSON", id="cut"),
        pytest.param(_other, r"calibration\.json is not what sparrow writes: ", id="other JSON"),
        pytest.param(_unscored, "no dense scores", id="unscored traces"),
        pytest.param(_bad_line, r"line 1 of .*observations\.jsonl is not what sparrow writes: policy", id="bad line"),
        pytest.param(_no_line, "holds no observation", id="no observation"),
    ],
)
def test_a_bad_run_is_refused(run_dirs: dict[str, Path], tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(run_dirs["calibration"], path)
    damage(path)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        write_report([path], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_the_command(run_dirs: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    assert main(["report", str(run_dirs["measured"]), "--output", str(tmp_path / "r.html")]) == 0
    assert "without data: Budget schedules" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "no"), "--output", str(tmp_path / "r.html")]) == 2
    assert "is no directory" in capsys.readouterr().err
    assert main(["report", str(run_dirs["measured"]), "--output", str(tmp_path / "r.pdf")]) == 2
    assert "must be a file name that ends in .html" in capsys.readouterr().err
