"""``distill_aware`` within ``sparrow train``: a cheaper rung once the adapter allows it, and back when it fails there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparrow_core.config import load_as
from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.testing.simulator import SyntheticMismatch, simulate
from sparrow_core.train_log import read_records
from sparrow_policies.distill_aware import DistillAwareConfig, DistillAwarePolicy
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.rl.run import train
from tests.rl.conftest import NUM_WORDS

TAU = 0.75
SAFE, CHEAP = 6, 4
POLICY = f"{{type: distill_aware, ladder: [[{SAFE}], [{CHEAP}]], tau: {TAU}, confidence: 0.5}}"


def carried_over(tail: float) -> float:
    """What a tail at the safe rung foretells of the cheap one, by the policy's power law."""
    return 1 - (1 - tail) * (SAFE / CHEAP) ** 0.7


@pytest.fixture
def ladder_settings(settings: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Prompts of over 28 tokens, so that every token is sparse; the support is the whole vocabulary."""
    texts = [" ".join(f"w{(11 * i + (5 + i % 3) * k) % NUM_WORDS}" for k in range(28 + i % 7)) for i in range(12)]
    prompts = tmp_path / "long.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return settings | {
        "policy": POLICY,
        "data.source": f"{{type: jsonl, path: {prompts}}}",
        "rollout.max_batch": 48,
        "rollout.topk_logprobs": NUM_WORDS + 3,
        "mismatch.bin_tokens": 64,
        "mismatch.num_bins": 1,
        "train.prompts_per_step": 12,
        "train.steps": 5,
        "optimizer.lr": 1e-6,
        "checkpoint.export": "false",
        "distill": "{adapter: {rank: 16}, optimizer: {lr: 0.0015}, sparse_ppo: {weight: 0}, updates: 3, reference_every: 1}",
    }


def config_of(settings: dict[str, Any]) -> TrainConfig:
    return load_as(TrainConfig, None, [f"{key}={value}" for key, value in settings.items()])


def test_the_schedule_steps_when_the_adapter_allows_it_and_back_when_it_fails(ladder_settings: dict[str, Any]) -> None:
    config = config_of(ladder_settings)
    train(config, None)
    records = read_records(Path(config.output) / "metrics.jsonl")
    pages = [record.bins[0].budget_pages for record in records]
    tails = [record.bins[0].tail_exact or 0.0 for record in records]
    down = pages.index(CHEAP)
    assert pages == [SAFE] * down + [CHEAP] + [SAFE] * (len(pages) - down - 1)
    assert 1 <= down < len(pages) - 1
    # Without the adapter the step is not allowed at any time, with it in the rollout before.
    without = [record.metrics["reference_tail/0"] for record, own in zip(records, pages, strict=True) if own == SAFE]
    assert max(carried_over(tail) for tail in without) < TAU
    assert carried_over(tails[0]) < TAU < carried_over(tails[down - 1])
    # The cheap rung fails with the adapter too, and less so than without it.
    assert records[down].metrics["reference_tail/0"] < tails[down] < TAU


def test_first_tokens_from_the_prefill_do_not_look_like_an_older_schedule() -> None:
    """They are drawn from all pages, here one token in twenty."""
    policy = DistillAwarePolicy(DistillAwareConfig(ladder=((40,), (20,)), num_bins=1, start=1), SparseLayout())

    def rollout(pages: int, prefills: int) -> Any:
        stream = simulate(SyntheticMismatch(), BudgetSchedule((pages,)), tokens_per_bin=2000, seed=[0])
        stream.merge(simulate(SyntheticMismatch(), BudgetSchedule((125,)), tokens_per_bin=prefills, seed=[1]))
        return stream

    policy.observe(rollout(40, 0))
    assert policy.predicted_lower_bounds() == {}
    assert policy.rung == 1
    policy.observe(rollout(20, 100))
    assert policy.rung == 0


def test_exact_acceptance_with_references_of_the_top_k_is_refused(ladder_settings: dict[str, Any]) -> None:
    exact = POLICY.replace("confidence", "acceptance: exact, confidence")
    with pytest.raises(InputError, match=r"policy.acceptance=exact.*distill.reference_every=0"):
        config_of(ladder_settings | {"policy": exact})
    config_of(ladder_settings | {"policy": exact, "distill": "{reference_every: 0}"})
