"""The demo: SmolLM2 on eight real prompts, dense and under three page budgets."""

from __future__ import annotations

from pathlib import Path

from sparrow_core.config import RunConfig, load_config, save_config
from sparrow_core.measure.measure import Measurement, measure
from sparrow_core.measure.progress import Progress
from sparrow_core.measure.sample_prompts import long_text_prompts, reasoning_prompts
from sparrow_core.model import LanguageModel, load_model
from sparrow_core.prompts import encode_prompts

DEMO_BUDGETS = (8, 16, 32)
_LONG_TEXTS = (1800, 3000, 4600, 6400)
"""Characters; about a quarter as many tokens."""
_SETTINGS = (
    "rollout.max_tokens=112",
    "rollout.max_batch=8",
    "rollout.seed=1",
    "mismatch.bin_tokens=540",
    "mismatch.num_bins=3",
)


def demo_config(policy: str, overrides: tuple[str, ...] = ()) -> RunConfig:
    return load_config(None, [*_SETTINGS, f"policy={policy}", *overrides])


def demo_prompts(model: LanguageModel) -> list[tuple[int, ...]]:
    """Four reasoning questions and four long texts, as token ids."""
    prompts = reasoning_prompts(4) + long_text_prompts(list(_LONG_TEXTS))
    return encode_prompts(prompts, model.tokenizer, chat=False)


def run_demo(output: Path, progress: Progress) -> dict[str, Measurement]:
    """Measure the dense policy and each budget on the same prompts; configs and traces land under ``output``."""
    model = load_model("smollm2", decode_layout=True)
    prompts = demo_prompts(model)
    policies = {"dense": "dense"}
    policies |= {f"{pages} pages": f"{{type: static, pages: {pages}}}" for pages in DEMO_BUDGETS}
    results: dict[str, Measurement] = {}
    for name, policy in policies.items():
        config = demo_config(policy)
        noise = results["dense"].noise if results else None
        results[name] = measure(config, model, prompts, progress.named(name), noise=noise)
        directory = output / name.replace(" ", "-")
        save_config(config, directory)
        results[name].traces.save(directory)
    return results
