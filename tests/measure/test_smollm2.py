"""A real model end to end: the engine against transformers, and the mismatch behaving as the method says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparrow_core.calibrate.calibrate import calibrate
from sparrow_core.calibrate.config import CalibrateConfig
from sparrow_core.config import load_as, load_config
from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.measure.measure import Measurement, measure
from sparrow_core.measure.progress import Progress
from sparrow_core.measure.sample_prompts import long_text_prompts, reasoning_prompts
from sparrow_core.model import LanguageModel, load_model
from sparrow_core.prompts import Prompt, encode_prompts
from tests.smollm2 import needs_smollm2

pytestmark = [needs_smollm2, pytest.mark.slow]


@pytest.fixture(scope="module")
def smollm2() -> LanguageModel:
    return load_model("smollm2", decode_layout=True)


def test_dense_greedy_equals_transformers_generate_on_16_prompts(smollm2: LanguageModel) -> None:
    from transformers import AutoModelForCausalLM

    texts = [
        Prompt("t", text=f"{start} {i}")
        for i, start in enumerate(["The number", "Once upon a time in", "def f(x):"] * 4)
    ]
    prompts = encode_prompts(texts + reasoning_prompts(4), smollm2.tokenizer, chat=False)
    assert len(prompts) == 16
    config = load_config(None, ["rollout.greedy=true", "rollout.max_tokens=16", "rollout.max_batch=16"])
    engine = build_engine(smollm2, config.attention, config.rollout)
    policy = build_policy(config.policy, config.attention.layout)
    traces = sorted(engine.generate(build_requests(smollm2, prompts, config.rollout), policy), key=lambda t: t.key)

    reference = AutoModelForCausalLM.from_pretrained(str(smollm2.directory), dtype=torch.float32).eval()
    for prompt, trace in zip(prompts, traces, strict=True):
        with torch.no_grad():
            out = reference.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=16, do_sample=False
            )
        assert trace.token_ids.tolist() == out[0, len(prompt) :].tolist()


def measured(smollm2: LanguageModel, policy: str) -> Measurement:
    """A short rollout from a short and a long real text."""
    settings = ["rollout.max_tokens=24", "mismatch.bin_tokens=400", "mismatch.num_bins=3", "mismatch.exact=true"]
    config = load_config(None, [*settings, f"policy={policy}"])
    prompts = encode_prompts(long_text_prompts([700, 3300]), smollm2.tokenizer, chat=False)
    return measure(config, smollm2, prompts, Progress(None))


@pytest.fixture(scope="module")
def small_budget(smollm2: LanguageModel) -> Measurement:
    return measured(smollm2, "{type: static, pages: 6}")


def test_a_full_budget_sits_at_the_noise_floor(smollm2: LanguageModel) -> None:
    full = measured(smollm2, "{type: static, pages: 512}")
    worst = min(float(t.scores().acceptance_exact.min()) for t in full.traces.traces)
    assert worst > 0.9999
    assert full.noise.kind == "exact"
    assert full.noise.min > 0.9999
    assert full.stats.attended_tokens == full.stats.dense_tokens


def test_a_small_budget_attends_to_fewer_tokens_and_drifts(small_budget: Measurement) -> None:
    assert small_budget.stats.attended_tokens < 0.3 * small_budget.stats.dense_tokens
    kept = [b.kept_fraction for b in small_budget.bins]
    assert len(kept) == 2
    assert kept[1] < kept[0]
    assert small_budget.stream.overall().mean < 0.99


def test_bounds_hold_the_exact_acceptance(small_budget: Measurement) -> None:
    """The bounds hold the records of the rollout's kernels, the exact value a second product: they differ by noise."""
    noise = small_budget.noise.max_logprob_diff
    assert 0 < noise < 2e-4
    for scores in (trace.scores() for trace in small_budget.traces.traces):
        assert (scores.acceptance_lower <= scores.acceptance_exact + noise).all()
        assert (scores.acceptance_exact <= scores.acceptance_upper + noise).all()


def test_acceptance_falls_with_length_and_rises_with_the_budget(smollm2: LanguageModel, tmp_path: Path) -> None:
    """The same real text under three budgets, its tokens forced, so that only the budget differs."""
    settings = {
        "calibrate.budgets": [5, 8, 40],
        "calibrate.text_prefix": 32,
        "calibrate.min_tokens": 50,
        "rollout.max_tokens": 300,
        "mismatch.bin_tokens": 166,
        "mismatch.num_bins": 2,
        "mismatch.exact": "true",
        "output": tmp_path,
    }
    config = load_as(CalibrateConfig, None, [f"{key}={value}" for key, value in settings.items()])
    prompts = encode_prompts(long_text_prompts([2000]), smollm2.tokenizer, chat=False)
    result = calibrate(config, smollm2, prompts, Progress(None))
    tails = {cell.pages: [stats.tail for stats in cell.bins] for cell in result.cells}
    assert tails[5][0] > tails[5][1]
    assert tails[8][0] > tails[8][1]
    assert tails[5][0] < tails[8][0] < tails[40][0]
    assert tails[5][1] < tails[8][1] < tails[40][1]
    assert min(tails[40]) > 0.9999, "40 pages hold the whole text"
