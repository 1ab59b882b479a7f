from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sparrow_core.config import validate
from sparrow_core.train_contracts import Completion
from sparrow_trainers.rewards import RewardsConfig

FUNCTIONS = "tests.rewards.reward_functions"

needs_sandbox = pytest.mark.usefixtures("sandbox_works")
"""Skips where answers cannot be isolated, with the reason."""


def completion(text: str, *, num_tokens: int = 1, prompt_id: str = "", **fields: Any) -> Completion:
    return Completion(prompt_id or f"p:{text[:20]}", "question", text, num_tokens, "stop", fields)


def rewards_config(*terms: str | Mapping[str, Any], **settings: Any) -> RewardsConfig:
    """Rewards of these terms: a plugin name, or a term's mapping."""
    return validate(RewardsConfig, {"terms": list(terms), "workers": 1, **settings})


def function_term(name: str, **term: Any) -> dict[str, Any]:
    return {"reward": {"type": "function", "path": f"{FUNCTIONS}:{name}"}, "name": name, **term}
