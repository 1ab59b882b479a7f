"""Policies on recorded traces, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sparrow_core import registry
from sparrow_core.cli import main
from sparrow_core.config import validate
from sparrow_core.contracts import CostModel, PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream
from sparrow_core.replay.config import ReplayConfig
from sparrow_core.replay.recordings import load_recordings
from sparrow_core.replay.replay import PolicyReplay, Replayer
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.trace import TraceSet
from tests.replay.recorded import MODEL, meta, trace, write_units

CLOSED_LOOP = "sparrow_policies.tail_threshold:TailThresholdPolicy"
COST_OPTIMAL = "sparrow_policies.cost_optimal:CostOptimalPolicy"
BUDGETS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

Capture = pytest.CaptureFixture[str]


class BrokenPolicy(SparsityPolicy):
    """Raises at its third observation."""

    Config = PluginConfig
    seen = 0

    def schedule(self) -> BudgetSchedule:
        return BudgetSchedule((16,))

    def observe(self, mismatch: MismatchStream) -> None:
        self.seen += 1
        if self.seen == 3:
            raise KeyError("lost")


class BySequence(BrokenPolicy):
    def budgets(self, lengths_B: torch.Tensor, keys: object) -> torch.Tensor:
        return torch.full_like(lengths_B, 16)


class PerPage(CostModel):
    """Ten seconds per page that a sequence attends to, and one per step."""

    Config = PluginConfig
    unit = "seconds"

    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return 1.0 + 10.0 * float(torch.minimum(pages_B, (lengths_B + 15) // 16).sum())


@pytest.fixture(autouse=True)
def _plugins() -> Iterator[None]:
    plugins: list[tuple[str, str, type]] = [
        ("sparrow.policies", "broken", BrokenPolicy),
        ("sparrow.policies", "by_sequence", BySequence),
        ("sparrow.cost_models", "per_page", PerPage),
    ]
    for group, name, plugin in plugins:
        registry.register(group, name, plugin)
    yield
    for group, name, _ in plugins:
        registry.unregister(group, name)


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_units(tmp_path_factory.mktemp("units"), BUDGETS, prompts=8)


def _replayer(units: Path, policies: Any, **settings: Any) -> Replayer:
    config = validate(ReplayConfig, {"policies": policies, **settings})
    return Replayer(config, load_recordings(units))


@pytest.mark.parametrize("initial", [4, 128], ids=["far too few pages", "far too many pages"])
def test_the_closed_loop_reaches_tau_within_five_observations(units: Path, initial: int) -> None:
    policy = {"type": CLOSED_LOOP, "initial": initial, "page_step": 1, "tau": 0.8}
    result = _replayer(units, [policy], observations=10, tokens_per_bin=2000).run()
    run = result.runs[0]
    for outcome in run.observations[5:]:
        for index in (2, 3):
            needed = MODEL.required_pages(index, 0.8, bin_tokens=500)
            assert 0.7 * needed <= outcome.schedule.pages[index] <= 1.6 * needed
            assert outcome.tails("lower")[index] >= 0.8 - 0.04


def test_a_stricter_tau_takes_more_pages_and_has_a_better_tail(units: Path) -> None:
    result = _replayer(units, [{"type": CLOSED_LOOP, "page_step": 1}], taus=[0.7, 0.8, 0.9], observations=8).run()
    assert [run.tau for run in result.runs] == [0.7, 0.8, 0.9]
    kept = [run.final.kept_fraction for run in result.runs]
    assert kept == sorted(kept)
    assert len({run.name for run in result.runs}) == 3
    for run in result.runs:
        assert min(run.final.tails("lower").values()) >= run.tau - 0.02


def test_cost_optimal_learns_the_cheapest_measured_budgets(units: Path) -> None:
    policy = {"type": COST_OPTIMAL, "budgets": list(BUDGETS), "tau": 0.8}
    run = _replayer(units, [policy], observations=30).run().runs[0]
    assert min(run.final.tails("lower").values()) >= 0.8
    for index in (2, 3):
        needed = MODEL.required_pages(index, 0.8, bin_tokens=500)
        assert run.final.schedule.pages[index] <= 2 * needed


def test_a_static_policy_settles_at_once_and_costs_its_pages(units: Path) -> None:
    result = _replayer(units, [{"type": "static", "pages": 16}, "dense"]).run()
    static, dense = result.runs
    assert static.settled_after == 0
    assert static.final.cost == pytest.approx(sum(min(16, -(-n // 16)) for n in range(20, 1920)) / 1900)
    assert dense.final.kept_fraction == 1
    assert dense.final.cost == pytest.approx(result.dense_cost)


def test_a_cost_model_counts_the_recorded_lengths(units: Path) -> None:
    result = _replayer(units, [{"type": "static", "pages": 4}], cost="per_page", cost_batch=2).run()
    # Every context but the shortest has at least 4 pages: 40 s per token, and half a second of each step.
    assert result.cost_unit == "seconds"
    assert result.runs[0].final.cost == pytest.approx(40.5, abs=0.5)
    assert result.dense_cost > 400


def test_one_run_cannot_be_told_from_the_same_run_again(units: Path) -> None:
    policies = [{"type": CLOSED_LOOP}]
    first, again = (_replayer(units, policies, tokens_per_bin=500).run().runs[0] for _ in range(2))
    assert [o.schedule for o in first.observations] == [o.schedule for o in again.observations]
    assert all(a.stream == b.stream for a, b in zip(first.observations, again.observations, strict=True))


def test_policies_see_the_bins_the_traces_were_recorded_with(units: Path) -> None:
    replayer = _replayer(units, [{"type": CLOSED_LOOP}, {"type": CLOSED_LOOP, "num_bins": 9}])
    assert (replayer.bins.bin_tokens, replayer.bins.num_bins) == (500, 4)
    assert replayer.policies[0][1].num_bins == 4  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="num_bins=9 but the mismatch stream has num_bins=4"):
        replayer.run()


def test_a_policy_that_raises_is_named_and_its_observations_are_kept(units: Path) -> None:
    seen: list[PolicyReplay] = []
    with pytest.raises(InputError, match=r"policy broken failed in observe\(\) at observation 2: KeyError"):
        _replayer(units, ["broken"]).run(seen.append)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"policies": ["by_sequence"]}, "decides by sequence", id="policy by sequence"),
        pytest.param({"policies": ["dense"], "acceptance": "exact"}, "hold bounds only", id="no exact acceptance"),
        pytest.param({"policies": ["dense"], "taus": [0.9, 1.2]}, "between 0 and 1", id="tau out of range"),
        pytest.param({"policies": []}, "must name at least one policy", id="no policy"),
        pytest.param({}, "policies is missing; set policies=", id="policies missing"),
        pytest.param(
            {"policies": [{"type": CLOSED_LOOP, "tau": 1.4}]},
            r"^configuration: policies\[0\]\.tau=1\.4",
            id="bad policy",
        ),
        pytest.param({"policies": ["dence"]}, "did you mean 'dense'", id="unknown policy"),
        pytest.param({"policies": [{"type": "static", "pages": 2}]}, "at least 4 pages", id="too few pages"),
        pytest.param(
            {"policies": [{"type": "schedule", "preset": "qwen3-1.7b-0.86"}], "observation": 3},
            "did you mean 'observations'",
            id="unknown key",
        ),
    ],
)
def test_bad_settings_are_refused(units: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Replayer(validate(ReplayConfig, settings), load_recordings(units))


def test_traces_recorded_for_exact_tails_are_judged_by_them(tmp_path: Path) -> None:
    config = {"mismatch": {"bin_tokens": 500, "num_bins": 4, "quantile": 0.05, "tau": 0.86, "exact": True}}
    TraceSet([trace(16, exact=True)], meta(policy="static", config=config)).save(tmp_path)
    result = _replayer(tmp_path, [{"type": "static", "pages": 16}]).run()
    final = result.runs[0].final
    assert result.acceptance == "exact"
    assert _replayer(tmp_path, [{"type": CLOSED_LOOP}]).policies[0][1].acceptance == "exact"  # type: ignore[attr-defined]
    assert final.tails("lower")[3] < final.tails("exact")[3] < final.tails("upper")[3]


def test_one_policy_needs_no_list(units: Path) -> None:
    assert [name for name, _ in _replayer(units, {"type": "static", "pages": 8}).policies] == ["static pages=8"]
    assert [name for name, _ in _replayer(units, "dense").policies] == ["dense"]


def test_a_preset_with_wider_bins_replays_on_narrower_ones(units: Path) -> None:
    run = _replayer(units, [{"type": "schedule", "preset": "qwen3-1.7b-0.86"}], observations=1).run().runs[0]
    assert run.final.schedule.bin_tokens == 2000
    assert sorted(run.final.tails("lower")) == [0, 1, 2, 3]


def test_the_command_writes_what_it_prints(units: Path, tmp_path: Path, capsys: Capture) -> None:
    policies = f"[{{type: '{CLOSED_LOOP}', tau: 0.8}}, {{type: static, pages: 5}}, {{type: static, pages: 5}}]"
    code = main(
        [
            *("replay", str(units), f"policies={policies}", f"output={tmp_path}/out", "observations=3"),
            *("--json", str(tmp_path / "copy.json")),
        ]
    )
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert "TailThresholdPolicy" in printed.out
    result = json.loads((tmp_path / "copy.json").read_text())
    assert result == json.loads((tmp_path / "out" / "replay.json").read_text())
    assert [p["policy"] for p in result["policies"]] == [
        "TailThresholdPolicy tau=0.8",
        "static pages=5 #1",
        "static pages=5 #2",
    ]
    assert "asks for 5 pages" in " ".join(printed.err.split())
    files = sorted((tmp_path / "out").glob("*/observations.jsonl"))
    assert len(files) == 3
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[0]["tau"] == 0.8
    assert {"pages", "bin_tokens"} == set(rows[0]["schedule"])
    assert rows[0]["bins"][0]["tokens"] > 0


def test_the_command_refuses_a_wrong_directory(tmp_path: Path, capsys: Capture) -> None:
    assert main(["replay", str(tmp_path / "nowhere"), "policies=[dense]"]) == 2
    assert "is no directory" in capsys.readouterr().err


def test_layout_is_the_traces(units: Path) -> None:
    assert load_recordings(units).layout == SparseLayout(16, 1, 2, (0, 1))
