"""What an objective's configuration refuses, and how its messages say so."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sparrow_core import registry
from sparrow_core.config.base import PluginOf
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import (
    Advantage,
    Correction,
    DenominatorRule,
    ObjectivePart,
    Penalty,
    PolicyLoss,
    RewardStage,
)
from sparrow_trainers.objectives.config import GROUP, ObjectiveConfig
from sparrow_trainers.objectives.objective import build_objective
from tests.objectives.helpers import part


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "clip", "clip_low": 0.2, "ratio_min": 0.8}, "clip has clip_low=0.2 and ratio_min=0.8; give one"),
        ({"type": "gspo", "clip_high": 0.2, "ratio_max": 1.2}, "gspo has clip_high=0.2 and ratio_max=1.2; give one"),
        ({"type": "cispo", "clip_high": 4, "ratio_max": 5}, "cispo has clip_high=4.0 and ratio_max=5.0; give one"),
        ({"type": "icepop", "low": 2.0, "high": 1.0}, "icepop has low=2.0 and high=1.0; give low < high"),
        ({"type": "mis", "low": 2.0}, "mis has low=2.0 and high=2.0; give low < high"),
        ({"type": "clip", "ratio_max": 0.9}, "ratio_max"),
        ({"type": "clip", "ratio_min": 1.1}, "ratio_min"),
        ({"type": "clip", "dual": 1.0}, "dual"),
        ({"type": "tis", "cap": 0}, "cap"),
        ({"type": "tis", "level": "geometric"}, "level"),
        ({"type": "veto", "least": 0}, "least"),
        ({"type": "kl", "estimator": "k4"}, "'k1', 'k2', 'k3' or 'low_variance'"),
        ({"type": "kl", "coefficient": 0}, "coefficient"),
        ({"type": "grpo", "eps": -1}, "eps"),
        ({"type": "batch_std", "std_of": "groups"}, "std_of"),
        ({"type": "overlong", "cache": 0}, "cache"),
        ({"type": "dler", "reward": float("inf")}, "reward"),
        ({"type": "constant", "tokens": 0}, "tokens"),
        ({"type": "rloo", "eps": 0.1}, "eps"),
        ({"type": "gpso"}, "gspo"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises((ValidationError, InputError)) as caught:
        PluginOf(GROUP).validate(config)
    assert message in str(caught.value)


def test_a_part_of_another_kind_is_refused_with_the_right_ones() -> None:
    with pytest.raises(ValidationError) as caught:
        ObjectiveConfig.model_validate({"policy_loss": "grpo"})
    message = str(caught.value)
    assert "objective.policy_loss='grpo' is a Advantage, not a PolicyLoss" in message
    assert "clip, gspo" in message


def test_every_part_is_found_by_name() -> None:
    kinds: dict[type[ObjectivePart], list[str]] = {
        RewardStage: ["dler", "overlong"],
        Advantage: ["batch_std", "dr_grpo", "grpo", "rloo"],
        Correction: ["batch_normalise", "icepop", "mis", "tis", "veto"],
        PolicyLoss: ["cispo", "clip", "gspo"],
        Penalty: ["kl"],
        DenominatorRule: ["constant", "sequence_mean", "token_mean"],
    }
    usable = {info.name for info in registry.known(GROUP) if info.error is None}
    for kind, names in kinds.items():
        assert set(names) <= usable
        assert all(isinstance(part(name), kind) for name in names)
        assert [type(part(name)).Config.model_fields["type"].default for name in names] == names


def test_the_default_is_that_of_the_method() -> None:
    config = ObjectiveConfig()
    assert config.name == "grpo, tis, clip, token_mean"
    assert not build_objective(config).needs_reference
