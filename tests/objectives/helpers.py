"""Random batches, parts by name, and several ranks played by threads.

Shapes: S sequences, T drawn tokens of them laid end to end.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch

from sparrow_core import registry
from sparrow_core.config.base import PluginOf
from sparrow_core.train_contracts import PolicyTokens, Reduce, ResponseBatch, TokenWeights
from sparrow_trainers.objectives.config import GROUP, ObjectiveConfig
from sparrow_trainers.objectives.objective import MetricSums, Objective, Prepared, build_objective

Result = TypeVar("Result")


def part(config: str | dict[str, Any]) -> Any:
    """An objective part as a configuration names it."""
    return _part(json.dumps(config))


@cache
def _part(config: str) -> Any:
    parsed = PluginOf(GROUP).validate(json.loads(config))
    return registry.load(GROUP, parsed.type)(parsed)


def objective(**settings: Any) -> Objective:
    return _objective(json.dumps(settings))


@cache
def _objective(settings: str) -> Objective:
    """Parts are looked up in the installed packages each time, and an objective keeps no state."""
    return build_objective(ObjectiveConfig.model_validate(json.loads(settings)))


def one_rank(values: torch.Tensor) -> torch.Tensor:
    return values


def make_batch(
    seed: int = 0, groups: Sequence[int] = (3, 4, 2, 3), longest: int = 9, mismatch: float = 0.5
) -> ResponseBatch:
    """``groups`` are sizes. All rewards of the second group are equal; lengths are 1 to ``longest``."""
    generator = torch.Generator().manual_seed(seed)
    group_S = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor(groups))
    lengths_S = torch.randint(1, longest + 1, group_S.shape, generator=generator)
    reward_S = torch.randn(group_S.shape, generator=generator)
    reward_S[group_S == 1] = 0.7
    sequence_T = torch.repeat_interleave(torch.arange(len(group_S)), lengths_S)
    old_logp_T = -torch.rand(sequence_T.shape, generator=generator) * 3 - 1e-3
    noise_T = torch.randn(sequence_T.shape, generator=generator) * mismatch
    return ResponseBatch(
        sequence_T=sequence_T,
        rollout_logp_T=old_logp_T - noise_T,
        old_logp_T=old_logp_T,
        group_S=group_S,
        reward_S=reward_S,
        truncated_S=lengths_S == longest,
        max_tokens=longest,
    )


def with_mismatch(batch: ResponseBatch, log_rho_T: Sequence[float] | torch.Tensor) -> ResponseBatch:
    return replace(batch, rollout_logp_T=batch.old_logp_T - torch.as_tensor(log_rho_T, dtype=torch.float32))


def batch_of(lengths: Sequence[int], **fields: Any) -> ResponseBatch:
    """A batch of given lengths, one group unless ``group_S`` is given, without mismatch."""
    sequence_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    old_logp_T = -torch.linspace(0.1, 2.0, len(sequence_T))
    plain = ResponseBatch(
        sequence_T=sequence_T,
        rollout_logp_T=old_logp_T,
        old_logp_T=old_logp_T,
        group_S=torch.zeros(len(lengths), dtype=torch.int64),
        reward_S=torch.zeros(len(lengths)),
        truncated_S=torch.zeros(len(lengths), dtype=torch.bool),
        max_tokens=max(lengths),
    )
    return replace(plain, **fields)


def select(batch: ResponseBatch, sequences: Sequence[int]) -> ResponseBatch:
    """Those sequences, renumbered."""
    at = [(batch.sequence_T == sequence).nonzero().reshape(-1) for sequence in sequences]
    at_T, chosen = torch.cat(at), torch.tensor(sequences)
    return ResponseBatch(
        sequence_T=torch.repeat_interleave(torch.arange(len(at)), torch.tensor([len(each) for each in at])),
        rollout_logp_T=batch.rollout_logp_T[at_T],
        old_logp_T=batch.old_logp_T[at_T],
        group_S=batch.group_S[chosen],
        reward_S=batch.reward_S[chosen],
        truncated_S=batch.truncated_S[chosen],
        max_tokens=batch.max_tokens,
    )


def twice(batch: ResponseBatch) -> ResponseBatch:
    """The batch laid twice, the second time as groups of their own."""
    again = select(batch, [*range(batch.num_sequences)] * 2)
    again.group_S[batch.num_sequences :] += 1 + int(batch.group_S.max())
    return again


def fresh_weights(batch: ResponseBatch) -> TokenWeights:
    return TokenWeights(torch.ones(len(batch.sequence_T)), torch.ones(len(batch.sequence_T), dtype=torch.bool))


def new_logprobs(batch: ResponseBatch, seed: int = 0, drift: float = 0.4) -> torch.Tensor:
    """Log-probs some updates later."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return batch.old_logp_T + torch.randn(batch.old_logp_T.shape, generator=generator) * drift


def policy_tokens(batch: ResponseBatch, new_logp_T: torch.Tensor, **fields: Any) -> PolicyTokens:
    """With advantages drawn per sequence, all tokens kept."""
    advantage_S = torch.randn(batch.num_sequences, generator=torch.Generator().manual_seed(7))
    tokens = PolicyTokens(
        new_logp_T=new_logp_T,
        old_logp_T=batch.old_logp_T,
        rollout_logp_T=batch.rollout_logp_T,
        advantage_T=advantage_S[batch.sequence_T],
        sequence_T=batch.sequence_T,
        kept_T=torch.ones_like(batch.sequence_T, dtype=torch.bool),
    )
    return replace(tokens, **fields)


@dataclass(frozen=True, eq=False)
class Step:
    loss: float
    gradient_T: torch.Tensor
    """Of the loss in the new log-probs, in the batch's order."""
    prepared: Prepared
    metrics: dict[str, float]
    """Those of the batch and those of the loss."""


def take_step(
    trained: Objective,
    batch: ResponseBatch,
    new_logp_T: torch.Tensor,
    *,
    reference_logp_T: torch.Tensor | None = None,
    micro_batches: Sequence[Sequence[int]] | None = None,
    reduce: Reduce = one_rank,
) -> Step:
    """One minibatch of all sequences, in micro-batches of the given sequences."""
    leaf_T = new_logp_T.clone().requires_grad_()
    prepared = trained.prepare(batch, reduce)
    everything = torch.arange(batch.num_sequences)
    denominator = trained.denominator(prepared, everything, reduce)
    loss, sums = torch.zeros((), dtype=torch.float64), MetricSums()
    for micro in [everything.tolist()] if micro_batches is None else micro_batches:
        at_T = torch.cat([(batch.sequence_T == sequence).nonzero().reshape(-1) for sequence in micro])
        reference = None if reference_logp_T is None else reference_logp_T[at_T]
        out = trained.loss(
            prepared,
            torch.tensor(micro),
            leaf_T[at_T],
            denominator,
            reference_logp_T=reference,
            entropy_T=-2 * batch.old_logp_T[at_T],
        )
        torch.autograd.backward(out.loss)
        loss += out.loss.detach()
        sums.merge(out.sums)
    assert leaf_T.grad is not None
    metrics = prepared.metrics | sums.reduce(reduce).means()
    return Step(float(reduce(loss.reshape(1))[0]), leaf_T.grad, prepared, metrics)


def on_ranks(count: int, work: Callable[[int, Reduce], Result]) -> list[Result]:
    """``work(rank, reduce)`` on threads whose ``reduce`` really sums over all of them."""
    barrier, slots = threading.Barrier(count, timeout=60), [torch.empty(0)] * count

    def run(rank: int) -> Result:
        def reduce(values: torch.Tensor) -> torch.Tensor:
            slots[rank] = values
            barrier.wait()
            total = torch.stack(slots).sum(0)
            barrier.wait()
            return total

        return work(rank, reduce)

    def release(done: Future[Result]) -> None:
        if done.exception() is not None:
            barrier.abort()

    with ThreadPoolExecutor(count) as pool:
        ranks = [pool.submit(run, rank) for rank in range(count)]
        for rank in ranks:
            rank.add_done_callback(release)
    errors = [error for rank in ranks if (error := rank.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return [rank.result() for rank in ranks]
