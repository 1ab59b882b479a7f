from __future__ import annotations

from typing import Any

import pytest

from sparrow_core.errors import InputError
from tests.data.helpers import source_of


def test_prompts_follow_the_seed_and_carry_what_the_reward_reads() -> None:
    settings = {"task": "chain_sum", "size": 4, "parameters": {"min_terms": 3, "max_terms": 3}, "suffix": " Go."}
    source, same, other = (source_of("reasoning_gym", seed=seed, **settings) for seed in (1, 1, 2))
    assert len(source) == 4
    assert [source[n] for n in (3, 0, 3)] == [same[n] for n in (3, 0, 3)]
    assert source[0].text != other[0].text
    assert source[2].prompt_id == "chain_sum:1:2"
    assert source[2].text == source[2].fields["entry"]["question"] + " Go."
    assert source[2].fields["task"] == "chain_sum"
    assert source[2].fields["entry"]["metadata"]["difficulty"]["num_terms"] == (3, 3)
    with pytest.raises(IndexError):
        source[4]
    with pytest.raises(IndexError):
        source[-1]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"task": "chain_sums"}, r"data\.source\.task='chain_sums' is no task of reasoning-gym; did you mean 'chain_sum'\?"),
        ({"task": "qqqqqqq"}, r"is no task of reasoning-gym; sorted\(reasoning_gym\.factory\.DATASETS\) lists them"),
        ({"task": "composite"}, "cannot be used: name one task"),
        ({"task": "chain_sum", "parameters": {"terms": 3}}, "has 'terms', which chain_sum does not know; it has .*max_terms.*min_terms"),
        ({"task": "chain_sum", "parameters": {"seed": 3}}, "has 'seed', which chain_sum does not know"),
        ({"task": "chain_sum", "parameters": {"min_terms": 0}}, r"data\.source\.parameters=.*is refused by chain_sum"),
        ({"task": "chain_sum", "parameters": {"min_terms": "x"}}, "is refused by chain_sum"),
    ],
)  # fmt: skip
def test_what_the_task_does_not_take_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        source_of("reasoning_gym", size=2, **settings)
