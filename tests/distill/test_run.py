"""Whole distillation runs of a tiny model: what they learn, and that stopping and going on changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparrow_core.errors import InputError
from sparrow_core.report.distilled import ACCEPTANCES
from sparrow_core.report.report import write_report
from sparrow_core.report.runs import read_runs
from sparrow_core.train_log import StepRecord, read_records
from sparrow_trainers.distill.run import distill, dry_run
from sparrow_trainers.distill.run_config import DistillRunConfig

Make = Callable[..., DistillRunConfig]


def records(config: DistillRunConfig) -> list[StepRecord]:
    return read_records(Path(config.output) / "metrics.jsonl")


def timeless(record: StepRecord) -> dict[str, float]:
    return {k: v for k, v in record.metrics.items() if not k.startswith("time/") and k != "rollout/tokens_per_second"}


def adapter_of(config: DistillRunConfig) -> dict[str, torch.Tensor]:
    return load_file(Path(config.output) / "adapter" / "adapter_model.safetensors")


def test_the_adapter_closes_part_of_the_gap_on_held_out_prompts(make_distill: Make) -> None:
    """Both looks at the same held-out rollouts, under a budget that is too small."""
    config = make_distill(
        train__steps=8,
        train__prompts_per_step=24,
        rollout__max_batch=24,
        evaluate__every=8,
        distill__optimizer__lr=0.001,
        distill__reference_every=7,
    )
    distill(config, None)
    steps = records(config)
    last = steps[-1].metrics
    assert steps[0].metrics["adapter/acceptance_mean"] == steps[0].metrics["reference/acceptance_mean"] < 0.95
    assert last["distill/loss"] < last["reference/forward_kl"]
    assert last["eval_adapter/forward_kl"] < last["eval_reference/forward_kl"]
    assert last["eval_adapter/acceptance_mean"] > last["eval_reference/acceptance_mean"]
    assert all(each.metrics["distill/rollout_logp_gap"] < 1e-4 for each in steps)


def test_stopped_and_gone_on_is_the_same_run_bit_for_bit(make_distill: Make, tmp_path: Path) -> None:
    whole = make_distill(output=tmp_path / "whole", evaluate__every=2)
    distill(whole, None)
    for steps in (1, 3):
        parts = make_distill(output=tmp_path / "parts", evaluate__every=2, train__steps=steps)
        distill(parts, None)
    assert [timeless(r) for r in records(whole)] == [timeless(r) for r in records(parts)]
    ours, theirs = adapter_of(whole), adapter_of(parts)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert distill(parts, None) is None


def test_the_report_draws_tail_kl_and_acceptances_with_and_without_the_adapter(
    make_distill: Make, tmp_path: Path
) -> None:
    config = make_distill(train__steps=3)
    distill(config, None)
    (run,) = read_runs([Path(config.output)])
    looks = [record for record in records(config) if "reference/forward_kl" in record.metrics]
    assert [record.step for record in looks] == [0, 2]
    counts = [histogram.sketch.count for histogram in run.histograms]
    assert counts == [int(looks[-1].metrics["distill/tokens"])] * 2
    means = [histogram.sketch.mean for histogram in run.histograms]
    assert means == pytest.approx(
        [looks[-1].metrics[f"{n}/acceptance_mean"] for n in ("adapter", "reference")], abs=1e-4
    )
    report = write_report([Path(config.output)], tmp_path / "report.html")
    names = {png.stem for png in report.pngs}
    assert {"report-distill-0", "report-acceptance-0"} <= names
    page = report.html.read_text()
    last = [looks[-1].metrics[f"{name}_tail/16"] for name in ("adapter", "reference")]
    assert f"from 16 tokens {last[0]:.3f} / {last[1]:.3f}" in page
    (Path(config.output) / ACCEPTANCES).write_text("[1]")
    with pytest.raises(InputError, match=r"acceptances.json is damaged"):
        read_runs([Path(config.output)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distill__adapter__rank": 0}, "rank.*at least 1"),
        ({"distill__adapter__target_modules": "[wq]"}, "'wq'.*q_proj, k_proj.*down_proj"),
        ({"distill__sparse_ppo__weight": 1}, "needs rewards"),
        ({"traces__path": "somewhere"}, "both of data and traces"),
        ({"data.source": None}, "neither of data and traces"),
        ({"evaluate__every": 2, "evaluate.data.source": None}, "needs held-out samples"),
        ({"parallel__tp": 2}, "parallel.tp=2"),
    ],
)
def test_bad_settings_are_refused(make_distill: Make, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        make_distill(**changes)


def test_a_dry_run_counts_and_writes_nothing(make_distill: Make) -> None:
    config = make_distill()
    plan = dry_run(config)
    assert plan.source == "40 prompts"
    assert plan.adapter_parameters > 0
    assert not Path(config.output).exists()
