"""Rewards that misbehave cost their own value: each is counted, logged with its prompt, and the next one is scored."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Completion
from sparrow_trainers.rewards import RewardPool
from tests.rewards.helpers import FUNCTIONS, completion, function_term, rewards_config

CONFIG = rewards_config(
    function_term("act"),
    function_term("length", weight=0.5, reward={"type": "function", "path": f"{FUNCTIONS}:length", "arguments": {"scale": 2}}),
    workers=2, time_limit_s=1.5, value_on_error=-3, memory_mb=2048,
)  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(CONFIG) as pool:
        yield pool


def values(pool: RewardPool, *texts: str) -> list[float]:
    return [outcome.parts["act"] for outcome in pool.score([completion(text) for text in texts])]


def test_rewards_are_weighted_sums_in_the_order_of_the_completions(pool: RewardPool) -> None:
    outcomes = pool.score([completion(f"sleep {delay} {n}", num_tokens=n) for n, delay in enumerate((0.2, 0.1, 0, 0))])
    assert [outcome.value for outcome in outcomes] == [2 * n for n in range(4)]
    assert [outcome.parts for outcome in outcomes] == [{"act": n, "length": 2 * n} for n in range(4)]
    assert all(outcome.error is None and outcome.message == "" for outcome in outcomes)
    assert pool.score([]) == []


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("raise", "raised", "RuntimeError: no such answer"),
        ("none", "raised", "returned None, which is not a number"),
        ("memory", "raised", "MemoryError"),
        ("interrupt", "died", "its process exited with code 1"),
        ("nan", "not_finite", "returned nan"),
        ("inf", "not_finite", "returned inf"),
        ("loop", "timeout", "ran past rewards.time_limit_s=1.5"),
        ("exit 3", "died", "its process exited with code 3"),
        ("kill", "died", r"its process was killed by SIGKILL (out of memory?)"),
    ],
)
def test_a_reward_that_fails_is_counted_and_logged(
    pool: RewardPool, caplog: pytest.LogCaptureFixture, text: str, kind: str, says: str
) -> None:
    pool.failures.clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        failed, next_one = pool.score([completion(text, num_tokens=4, prompt_id="rows:17"), completion("7")])
    assert failed.error == kind
    assert says in failed.message
    assert failed.parts == {"act": -3, "length": 8}
    assert failed.value == -3 + 0.5 * 8
    assert next_one.parts["act"] == 7
    assert pool.failures == Counter({("act", kind): 1})
    assert f"reward on prompt rows:17 failed: act: {kind}: {says}" in caplog.text


def test_what_a_reward_warns_of_is_logged_with_its_prompt(pool: RewardPool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        (outcome,) = pool.score([completion("warn", prompt_id="rows:3")])
    assert outcome.error is None
    assert [record.getMessage() for record in caplog.records] == ["reward act on prompt rows:3: it is late"]


def test_workers_that_ended_between_two_calls_are_replaced(pool: RewardPool) -> None:
    before = set(values(pool, *["pid"] * 8))
    for worker in pool._workers:
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.pipe.poll(10), "its pipe has not ended"
    after = set(values(pool, *["pid"] * 8))
    assert not before & after
    assert -3 not in after


def test_what_a_reward_prints_does_not_disturb_the_pipe(pool: RewardPool) -> None:
    assert values(pool, "print", "1") == [0, 1]


def test_fields_of_any_mapping_reach_the_reward(pool: RewardPool) -> None:
    from types import MappingProxyType

    made = Completion("p", "q", "5", 1, "stop", MappingProxyType({"a": 1}))
    assert pool.score([made])[0].parts["act"] == 5


@pytest.mark.parametrize(
    ("terms", "settings", "says"),
    [
        (["maths"], {}, r"terms\[0\].*maths.*math"),
        (["math", "math"], {}, r"rewards\.terms has 'math' more than once; give each a name of its own"),
        ([], {}, "terms"),
        ([{"reward": {"type": "code", "total_limit_s": 10}}], {"time_limit_s": 10},
         r"rewards\.terms\[0\]\.reward\.total_limit_s=10 must be below rewards\.time_limit_s=10"),
        ([{"reward": {"type": "math", "parse_limit": 3}}], {}, "parse_limit.*parse_limit_s"),
        ([{"reward": {"type": "function", "path": "no path"}}], {}, "path"),
    ],
    ids=str,
)  # fmt: skip
def test_configurations_that_cannot_work_are_refused(terms: list[Any], settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        rewards_config(*terms, **settings)


def test_a_reward_that_cannot_be_built_stops_the_start() -> None:
    says = r"rewards\.terms\[0\] \(lenght\): InputError: reward\.path='.*:lenght': .* has no 'lenght'; did you mean 'length'"
    with pytest.raises(InputError, match=says):
        RewardPool(rewards_config(function_term("lenght")))


def test_a_closed_pool_refuses_to_score() -> None:
    pool = RewardPool.__new__(RewardPool)
    pool._closed = True
    with pytest.raises(RuntimeError, match="the reward pool is closed"):
        pool.score([completion("1")])
