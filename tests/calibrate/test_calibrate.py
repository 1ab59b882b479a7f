"""Calibration on a tiny model: resumable, reproducible, and honest about what it could not measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparrow_core.calibrate.calibrate import Calibration, calibrate
from sparrow_core.calibrate.config import CalibrateConfig
from sparrow_core.calibrate.files import calibration_json, schedule_of, tail_table
from sparrow_core.calibrate.grid import default_budgets
from sparrow_core.calibrate.units import UnitRunner
from sparrow_core.config import load_as, load_config
from sparrow_core.engine.build import build_policy
from sparrow_core.errors import InputError
from sparrow_core.measure.progress import Progress
from sparrow_core.model import LanguageModel
from sparrow_core.schedule_file import read_schedule, write_schedule
from sparrow_core.search.tail_table import read_tail_table
from tests.engine.conftest import make_prompts, tiny  # noqa: F401

SETTINGS = {
    "attention.page_size": 4,
    "calibrate.budgets": [4, 8, 30],
    "calibrate.min_tokens": 20,
    "calibrate.resamples": 100,
    "rollout.max_tokens": 30,
    "mismatch.bin_tokens": 40,
    "mismatch.num_bins": 3,
    "mismatch.tau": 0.5,
}
PROMPTS = make_prompts([12, 30, 44, 70])


def config(output: Path, **changes: object) -> CalibrateConfig:
    settings = {**SETTINGS, "output": output, **{k.replace("__", "."): v for k, v in changes.items()}}
    return load_as(CalibrateConfig, None, [f"{key}={value}" for key, value in settings.items()])


def run(model: LanguageModel, output: Path, **changes: object) -> Calibration:
    return calibrate(config(output, **changes), model, PROMPTS, Progress(None))


def text(result: Calibration) -> str:
    return json.dumps(calibration_json(result, "tiny"), sort_keys=True)


def test_tails_rise_with_the_budget_and_a_full_budget_is_dense(tiny: LanguageModel, tmp_path: Path) -> None:  # noqa: F811
    result = run(tiny, tmp_path)
    by_pages = {cell.pages: cell.bins for cell in result.cells}
    for index in range(3):
        assert by_pages[4][index].tokens == by_pages[30][index].tokens
        assert by_pages[4][index].tail < by_pages[30][index].tail
        assert by_pages[30][index].tail > 0.999
    pages = result.searches["mean_landmark"].pages
    assert list(pages) == sorted(pages)


@pytest.mark.parametrize("mode", ["teacher_forced", "on_policy"])
def test_interrupted_and_resumed_gives_the_same_result(tiny: LanguageModel, tmp_path: Path, mode: str) -> None:  # noqa: F811
    whole = run(tiny, tmp_path / "whole", calibrate__mode=mode)

    class Interrupted(Exception):
        pass

    class StopAfter(UnitRunner):
        def run(self, unit, progress):
            if unit.prompt == 2:
                raise Interrupted
            return super().run(unit, progress)

    part = tmp_path / "part"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparrow_core.calibrate.calibrate.UnitRunner", StopAfter)
        with pytest.raises(Interrupted):
            run(tiny, part, calibrate__mode=mode)
    done = {path: path.stat().st_mtime_ns for path in part.rglob("traces.safetensors")}
    assert done
    resumed = run(tiny, part, calibrate__mode=mode)
    assert {path: path.stat().st_mtime_ns for path in done} == done, "a finished unit was run again"
    assert text(resumed) == text(whole)


def test_a_directory_of_another_calibration_is_refused(tiny: LanguageModel, tmp_path: Path) -> None:  # noqa: F811
    run(tiny, tmp_path)
    with pytest.raises(InputError, match="other settings in mismatch"):
        run(tiny, tmp_path, mismatch__tau=0.7)


def test_forced_text_is_the_prompts_own(tiny: LanguageModel, tmp_path: Path) -> None:  # noqa: F811
    runner = UnitRunner(config(tmp_path, calibrate__text_prefix=10), tiny, PROMPTS, tmp_path)
    traces = runner.run(runner.units()[-1], Progress(None))
    assert traces.meta.policy == "budget_grid"
    for trace in traces.traces:
        assert (*trace.prompt_ids.tolist(), *trace.token_ids.tolist()) == PROMPTS[-1][:40]
    with pytest.raises(InputError, match=r"prompt 0 has 12 tokens, nothing after calibrate.text_prefix=20"):
        run(tiny, tmp_path / "short", calibrate__text_prefix=20)


def test_unreachable_tau_and_thin_bins_are_named(tiny: LanguageModel, tmp_path: Path) -> None:  # noqa: F811
    result = run(tiny, tmp_path, calibrate__budgets=[4, 5], mismatch__tau=0.99, mismatch__num_bins=4)
    assert any("tau=0.99 is not reached" in w and "calibrate.budgets" in w for w in result.warnings)
    assert any("only 0 tokens" in w and "last measured bin's budget" in w for w in result.warnings)


def test_selectors_are_measured_on_the_same_text_and_compared(tiny: LanguageModel, tmp_path: Path) -> None:  # noqa: F811
    result = run(tiny, tmp_path, calibrate__selectors=["oracle", "random"])
    assert set(result.searches) == {"oracle", "random"}
    tokens = {cell.selector: [b.tokens for b in cell.bins] for cell in result.cells}
    assert tokens["oracle"] == tokens["random"]
    means = {cell.selector: cell.bins[-1].mean for cell in result.cells if cell.pages == 8}
    assert means["oracle"] > means["random"]


def test_the_schedule_round_trips_into_a_policy(tiny: LanguageModel, tmp_path: Path) -> None:  # noqa: F811
    result = run(tiny, tmp_path)
    path = write_schedule(tmp_path / "schedule.json", schedule_of(result, "tiny"))
    file = read_schedule(path)
    assert file.schedule.pages == result.searches[result.best].pages
    assert file.provenance["tau"] == 0.5
    assert file.provenance["tokens_per_bin"] == [b.tokens for b in result.cells[0].bins]
    run_config = load_config(None, ["attention.page_size=4", f"policy={{type: schedule, file: {path}}}"])
    policy = build_policy(run_config.policy, run_config.attention.layout)
    assert policy.schedule() == file.schedule


def test_the_tail_table_feeds_the_cost_optimal_policy(tiny: LanguageModel, tmp_path: Path) -> None:  # noqa: F811
    result = run(tiny, tmp_path)
    path = tmp_path / "tails.json"
    tail_table(result, "tiny").write(path)
    table = read_tail_table(path)
    assert [(row.selector, row.pages) for row in table.rows] == [(c.selector, c.pages) for c in result.cells]
    assert table.rows[0].bins[0].tail == result.cells[0].bins[0].tail


def test_budgets_below_the_reserved_pages_are_refused(tiny: LanguageModel, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(InputError, match=r"calibrate.budgets has 3, below sink \+ recent \+ 1 = 4"):
        run(tiny, tmp_path, calibrate__budgets=[3, 8])


def test_default_budgets_are_distinct_and_start_at_the_least() -> None:
    budgets = default_budgets(512, 4, 18)
    assert budgets[0] == 4
    assert budgets[-1] == 256
    assert len(set(budgets)) == len(budgets) == 18
