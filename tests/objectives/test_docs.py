"""The manual's configurations are valid, it names every part and option, and its plugin runs as it says."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sparrow_core import registry
from sparrow_core.config import validate
from sparrow_trainers.objectives.config import GROUP, ObjectiveConfig
from sparrow_trainers.objectives.objective import build_objective
from tests.objectives.helpers import batch_of, one_rank, take_step, with_mismatch

MANUAL = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()
YAML = re.findall(r"^```yaml\n(.*?)^```$", MANUAL, re.DOTALL | re.MULTILINE)
PYTHON = re.findall(r"^```python\n(.*?)^```$", MANUAL, re.DOTALL | re.MULTILINE)


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manual's plugin as a module ``crowd``."""
    (plugin,) = PYTHON
    assert len(plugin.splitlines()) <= 40
    (tmp_path / "crowd.py").write_text(plugin)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("block", YAML)
def test_configurations_are_valid(block: str) -> None:
    parts = yaml.safe_load(block)
    assert parts.keys() == {"objective"}
    build_objective(validate(ObjectiveConfig, parts["objective"]))


def test_every_part_and_option_is_named() -> None:
    own = [info for info in registry.known(GROUP) if info.target.startswith("sparrow_trainers.")]
    assert len(own) >= 18
    for info in own:
        plugin: Any = registry.load(GROUP, info.name)
        (row,) = re.findall(rf"^\| `{info.name}` \|.*$", MANUAL, re.MULTILINE)
        shared = {"type", "clip_low", "clip_high", "ratio_min", "ratio_max"}
        assert not [option for option in plugin.Config.model_fields if option not in shared and f"`{option}" not in row]
    assert all(f"`{name}`" in MANUAL or f"{name}:" in MANUAL for name in ObjectiveConfig.model_fields)


@pytest.mark.usefixtures("crowd")
def test_the_plugin_rejects_sequences_with_too_many_tokens_off() -> None:
    log_two = math.log(2)
    log_rho = [0.0, 0.0, 0.0, 2 * log_two, 0.0, -2 * log_two, 0.9 * log_two, 0.9 * log_two]
    batch = with_mismatch(batch_of([4, 2, 2], reward_S=torch.tensor([0.0, 1.0, 2.0])), log_rho)
    config = {"corrections": [{"type": "crowd:CrowdVeto", "share": 0.3}, "tis"]}
    trained = build_objective(validate(ObjectiveConfig, config))
    prepared = trained.prepare(batch, one_rank)
    assert prepared.weights.kept_T.tolist() == [True] * 4 + [False] * 2 + [True] * 2
    assert prepared.metrics["objective/rejected_sequences_CrowdVeto"] == pytest.approx(1 / 3)
    step = take_step(trained, batch, batch.old_logp_T)
    assert step.gradient_T[4:6].tolist() == [0.0, 0.0]
    assert float(step.gradient_T[6:].abs().min()) > 0
