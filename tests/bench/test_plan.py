from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparrow_core.bench.plan import GIB, Planner
from sparrow_core.bench.steps import StepBench
from sparrow_core.cli import main
from sparrow_core.config import load_config
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel, inspect_model
from sparrow_core.schedule import BudgetSchedule


def size_of(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("length", [63, 64, 65])
def test_planned_bytes_are_those_of_the_tensors_that_are_made(tiny: LanguageModel, length: int) -> None:
    config = load_config(None, ["attention.page_size=4", "attention.selector=quest"])
    plan = Planner(tiny, 4, landmark_vectors=2).plan(3, length)
    bench = StepBench(
        tiny, config.attention, config.rollout, capacities=[length] * 3, schedule=BudgetSchedule((5,), page_size=4)
    )
    cache, step = bench.session.cache, bench.steps["attention"]
    assert plan.kv == size_of(cache.k, cache.v)
    assert plan.landmarks == size_of(cache.landmarks)
    rotary = next(iter(tiny.module.layers.values())).attention.rope.cache
    assert plan.weights == size_of(rotary, *tiny.module.parameters())
    state = [t for t in vars(step.state).values() if isinstance(t, torch.Tensor)]
    ring = [t for t in vars(step.ring).values() if isinstance(t, torch.Tensor)]
    assert plan.records == pytest.approx(size_of(*state, *ring), rel=0.1)


def test_the_largest_batch_fits_and_one_more_does_not(tiny: LanguageModel) -> None:
    planner = Planner(tiny, 4, 1)
    for memory in (planner.plan(1, 160).total, 10 << 20, 50 << 20):
        best = planner.largest(160, memory)
        assert best.total <= memory < planner.plan(best.batch + 1, 160).total


def test_a_model_that_does_not_fit_says_what_it_needs() -> None:
    planner = Planner(inspect_model("random:qwen3-8b", dtype=torch.bfloat16), 16, 1)
    with pytest.raises(
        InputError, match=r"4\.00 GiB cannot hold one sequence of 32768 tokens: qwen3-8b needs \d+\.\d+"
    ):
        planner.largest(32768, 4 * GIB)


def test_a_batch_that_does_not_fit_says_which_does() -> None:
    planner = Planner(inspect_model("random:qwen3-1.7b", dtype=torch.bfloat16), 16, 1)
    with pytest.raises(InputError, match=r"batch=64 at length=16384 needs .* a batch of (\d+) at 16384") as error:
        planner.check_fits(64, [16384] * 64, 20 * GIB)
    fits = int(str(error.value).split("a batch of ")[1].split()[0])
    planner.check_fits(fits, [16384] * fits, 20 * GIB)
    with pytest.raises(InputError, match=f"batch={fits + 1}"):
        planner.check_fits(fits + 1, [16384] * (fits + 1), 20 * GIB)
    with pytest.raises(InputError, match="not even one row of 16384 tokens fits"):
        planner.check_fits(2, [16384] * 2, 1 << 20)


def test_the_command_plans_without_weights(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    arguments = "bench plan --model random:qwen3-1.7b --length 16384,32768 --memory-gib 139 --page-size 16 --json"
    assert main([*arguments.split(), str(out)]) == 0
    result = json.loads(out.read_text())
    long, short = (row["plan"] for row in sorted(result["rows"], key=lambda r: -r["plan"]["length"]))
    assert short["batch"] == pytest.approx(2 * long["batch"], abs=2)
    assert short["kv"] == short["batch"] * 16384 * 28 * 4096
    assert all(row["fits"] and row["check"] is None for row in result["rows"])


def test_batches_that_are_asked_for_are_planned_even_when_they_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    arguments = "bench plan --model random:qwen3-1.7b --length 4096 --batch 2 --batch 64 --memory-gib 8 --json"
    assert main([*arguments.split(), str(out)]) == 0
    assert [row["fits"] for row in json.loads(out.read_text())["rows"]] == [True, False]
    assert "not in 6.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--length 64", "--model is missing"),
        ("--model random:qwen3-1.7b", "--length is missing"),
        ("--model random:qwen3-1.7b --length 64 --memory-gib 0", "--memory-gib=0.0 must be above 0"),
        ("--model random:qwen3-1.7b --length 64 --memory-gib 1", "--reserve-gib=2.0 must be at least 0 and below"),
        ("--model random:qwen3-1.7b --length 99999 --memory-gib 9", "length=99999 is outside qwen3-1.7b's context"),
        ("--model random:qwen3-1.7b --length 6.4", "--length='6.4' must be a whole number"),
        ("--model random:qwen3-1.7b --length 64 --device cpu --check", "pass --device cuda"),
    ],
)
def test_bad_input(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plan", *arguments.split()]) == 2
    assert message in capsys.readouterr().err
