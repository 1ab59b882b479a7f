"""Training runs in a report: what is read from their logs, what is said, and how a bad log is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from sparrow_core.cli import main
from sparrow_core.errors import InputError
from sparrow_core.report.data import Run
from sparrow_core.report.figures import MOST_OBSERVATIONS
from sparrow_core.report.report import Report, write_report
from sparrow_core.report.runs import read_runs
from sparrow_core.report.train_figures import MOST_POINTS, tail_map, thinned, time_parts, trained_runs
from sparrow_core.train_log import METRICS, StepRecord, bin_records, read_records
from tests.report import runs
from tests.run_log import records


@pytest.fixture(scope="module")
def run(run_dirs: dict[str, Path]) -> Run:
    (only,) = read_runs([run_dirs["training"]])
    return only


def test_curves_are_those_of_the_log(run: Run, run_dirs: dict[str, Path]) -> None:
    logged = read_records(run_dirs["training"] / METRICS)
    assert run.training is not None
    assert run.training.steps == tuple(range(12))
    assert run.training.metrics["reward/mean"].tolist() == [r.metrics["reward/mean"] for r in logged]
    worst = [min(b.tail_lower for b in r.bins if b.tail_lower is not None) for r in logged]
    assert run.training.worst_tail.tolist() == worst


def test_budgets_and_tails_by_bin_are_those_of_the_log(run: Run, run_dirs: dict[str, Path]) -> None:
    logged = read_records(run_dirs["training"] / METRICS)
    assert run.loop is not None
    assert run.loop.tau == 0.8
    assert [o.schedule.pages for o in run.loop.observations] == [(6 + s // 2, 12 + s // 2, 24, None) for s in range(12)]
    assert {o.schedule.bin_tokens for o in run.loop.observations} == {500}
    for observation, record in zip(run.loop.observations, logged, strict=True):
        assert [b.tail for b in observation.bins] == [b.tail_lower for b in record.bins if b.tokens]
    assert [s.label for s in run.schedules] == ["step 0", "step 11"]


def test_the_card_tells_policy_steps_and_what_was_not_finite(run: Run) -> None:
    facts = dict(run.facts)
    assert facts["policy"] == "tail_threshold"
    assert facts["objective"] == "grpo"
    assert facts["steps"] == "0 to 11"
    assert run.warnings == ("mismatch/kl_k3 was not finite at 1 of 12 steps, first at step 1",)


def test_kept_is_the_logged_share_where_there_is_one(tmp_path: Path) -> None:
    path = runs.training_run(tmp_path / "run", steps=2)
    (plain,) = trained_runs(read_runs([path]))
    by_bin = [b.kept_fraction for b in read_records(path / METRICS)[0].bins if b.kept_fraction is not None]
    assert min(by_bin) < plain.training.kept[0] < max(by_bin)
    first, second = read_records(path / METRICS)
    logged = StepRecord(0, 0, {**first.metrics, "mismatch/kept_fraction": 0.125}, first.bins)
    (path / METRICS).write_text(f"{logged.line()}\n{second.line()}\n")
    (again,) = trained_runs(read_runs([path]))
    assert again.training.kept.tolist() == [0.125, plain.training.kept[1]]


def test_the_time_of_a_step_is_split_without_rest(run: Run) -> None:
    (trained,) = trained_runs([run])
    parts = time_parts(trained.training)
    assert list(parts) == ["rollout", "recompute", "update", "other"]
    assert sum(parts.values()) == pytest.approx(trained.training.metrics["time/step_s"])


def test_evaluation_is_no_part_of_the_step(tmp_path: Path) -> None:
    path = runs.training_run(tmp_path / "run", steps=1)
    times = {"time/rollout_s": 6.0, "time/step_s": 10.0, "time/evaluate_s": 50.0}
    (path / METRICS).write_text(StepRecord(0, 0, times).line() + "\n")
    (trained,) = trained_runs(read_runs([path]))
    parts = {name: values.tolist() for name, values in time_parts(trained.training).items()}
    assert parts == {"rollout": [6.0], "evaluate": [50.0], "other": [4.0]}


def test_runs_lie_side_by_side(full_report: Report) -> None:
    text = full_report.html.read_text(encoding="utf-8")
    (training,) = re.findall(r'<figure id="training">.*?</figure>', text, flags=re.DOTALL)
    assert ">rl<" in training
    assert ">rl-2<" in training
    assert {"time-0", "time-1"} <= set(re.findall(r'<figure id="([^"]+)"', text))
    assert "rl: 12 steps, reward from" in training
    assert "below tau = 0.8 at " in training


def test_tails_below_tau_are_counted(full_report: Report, run_dirs: dict[str, Path]) -> None:
    bins = [b for r in read_records(run_dirs["training"] / METRICS) for b in r.bins if b.tail_lower is not None]
    below = sum(b.tail_lower < 0.8 for b in bins if b.tail_lower is not None)
    assert 0 < below < len(bins) == 36
    text = full_report.html.read_text(encoding="utf-8")
    assert f"red where it is below ({below} of {len(bins)})" in text


@pytest.mark.parametrize(("tail", "is_blue"), [(0.0, False), (0.79, False), (0.8, True), (0.81, True), (1.0, True)])
def test_the_map_turns_blue_at_tau(run_dirs: dict[str, Path], run: Run, tail: float, is_blue: bool) -> None:
    assert run.loop is not None
    figure = tail_map(run.loop)
    (mesh,) = [c for c in figure.axes[0].collections if isinstance(c, QuadMesh)]
    red, _, blue, _ = mesh.to_rgba(np.array([tail]))[0]
    assert (blue > red) == is_blue
    assert mesh.get_array() is not None
    assert np.ma.count(mesh.get_array()) == 36


def test_every_metric_is_in_the_table_and_in_a_figure(full_report: Report, run: Run) -> None:
    text = full_report.html.read_text(encoding="utf-8")
    table = text[text.index('<h2 id="section-all-metrics">') :]
    captions = " ".join(re.findall(r'<figure id="metrics-.*?<figcaption>(.*?)</figcaption>', text, flags=re.DOTALL))
    assert run.training is not None
    assert len(run.training.metrics) == 14
    for name in run.training.metrics:
        group, _, metric = name.rpartition("/")
        assert len(re.findall(rf"<td>rl</td><td>{group or '–'}</td><td>{metric}</td>", table)) == 1
        assert (name in captions) != name.startswith("time/")
    assert "&lt;few&gt;" in text


@pytest.mark.parametrize("count", [1, MOST_POINTS, MOST_POINTS + 1, 5 * MOST_POINTS - 1])
def test_long_curves_are_means_over_neighbouring_steps(count: int) -> None:
    values = np.arange(float(count))
    steps, means = thinned(range(count), values)
    assert len(steps) == len(means) <= MOST_POINTS
    assert steps[-1] == count - 1
    sizes = np.diff(np.concatenate([[-1], steps]))
    assert (means * sizes).sum() == pytest.approx(values.sum())
    if count <= MOST_POINTS:
        assert means.tolist() == values.tolist()


def test_what_is_not_finite_does_not_hide_its_neighbours() -> None:
    values = np.ones(2 * MOST_POINTS)
    values[[0, 2, 3]] = np.nan, np.inf, np.nan
    _, means = thinned(range(len(values)), values)
    assert means[0] == 1
    assert np.isnan(means[1])
    assert (means[2:] == 1).all()


def test_a_long_run_gives_a_small_page(tmp_path: Path) -> None:
    path = runs.training_run(tmp_path / "run", steps=1)
    (only,) = read_records(path / METRICS)
    lines = [StepRecord(step, step, only.metrics, only.bins).line() for step in range(4 * MOST_OBSERVATIONS)]
    (path / METRICS).write_text("\n".join(lines) + "\n")
    report = write_report([path], tmp_path / "report.html")
    assert report.html.stat().st_size < 700_000
    text = report.html.read_text(encoding="utf-8")
    assert "means over neighbouring steps" in text
    assert text.count("Of every 4 steps one is drawn.") == 4  # two captions and two descriptions


def test_a_single_step_without_bins_or_metrics_is_drawn(tmp_path: Path) -> None:
    path = runs.training_run(tmp_path / "run", steps=1)
    (path / METRICS).write_text(StepRecord(4, 4, {}).line() + "\n")
    report = write_report([path], tmp_path / "report.html")
    assert "Training metrics" in report.missing
    assert "Training time" in report.missing
    assert "run: 1 step." in report.html.read_text(encoding="utf-8")


def test_a_policy_that_decides_by_sequence_shows_means(tmp_path: Path) -> None:
    path = runs.training_run(tmp_path / "run", steps=1)
    (path / METRICS).write_text(StepRecord(0, 0, {}, bin_records(records.stream(), None)).line() + "\n")
    (run,) = read_runs([path])
    assert run.loop is not None
    assert run.loop.observations[0].schedule.pages == (8, 8, None)
    assert "decided by sequence" in dict(run.facts)["budgets"]


def test_a_run_that_trains_can_be_reported(tmp_path: Path) -> None:
    path = runs.training_run(tmp_path / "run", steps=3)
    with (path / METRICS).open("a") as stream:
        stream.write('{"step": 3, "policy_ver')
    (run,) = read_runs([path])
    assert run.training is not None
    assert run.training.steps == (0, 1, 2)


def test_no_step_yet_a_lost_file_and_a_damaged_line_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = runs.training_run(tmp_path / "run", steps=2)
    lines = (path / METRICS).read_text()
    (path / METRICS).write_text("{}\n" + lines)
    assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == 2
    assert f"line 1 of {path / METRICS}" in capsys.readouterr().err.replace("\n", "")
    (path / METRICS).write_text("")
    with pytest.raises(InputError, match="holds no step yet"):
        read_runs([path])
    (path / METRICS).write_text(lines)
    (path / "training.json").unlink()
    with pytest.raises(InputError, match=r"training\.json"):
        read_runs([path])
