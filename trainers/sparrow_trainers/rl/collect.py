"""Sampling of one RL step on this rank: generate sparsely, recompute densely, reward."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sparrow_core.config import AttentionConfig, MismatchConfig, RolloutConfig
from sparrow_core.contracts import SparsityPolicy
from sparrow_core.engine.build import build_engine
from sparrow_core.engine.sampling import SamplingParams
from sparrow_core.engine.sequence import Request
from sparrow_core.engine.stats import EngineStats
from sparrow_core.measure.score import score_traces
from sparrow_core.mismatch import MismatchStream
from sparrow_core.model import LanguageModel
from sparrow_core.trace import SampleKey, Trace
from sparrow_core.train_contracts import Completion, PromptExample
from sparrow_trainers.distill.teacher import StudentSample
from sparrow_trainers.rewards.pool import RewardOutcome, RewardPool
from sparrow_trainers.rl.sample import Sample


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready to be sampled."""

    group: int
    """Its number within the step; part of every sample's seed."""
    ids: tuple[int, ...]
    example: PromptExample
    text: str


@dataclass(slots=True)
class Timings:
    """Seconds, and what the engine counted meanwhile."""

    rollout: float = 0.0
    recompute: float = 0.0
    reward: float = 0.0
    generated_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class Collected:
    """What one rank sampled."""

    samples: list[Sample] = field(default_factory=list)
    texts: list[Completion] = field(default_factory=list)
    tails: list[float | None] = field(default_factory=list)
    """Low quantile of each sample's acceptance."""
    students: list[StudentSample] = field(default_factory=list)
    """Each sample's trace with the dense log-probs of its top-K ids, where an adapter is trained on them."""


class Collector:
    """Samples prompts with the policy's weights on this rank.

    Args:
        model: the weights to sample with; refreshed in place between calls.
        reference: weights of the KL penalty's reference policy.
        releases_cache: free the KV cache after every rollout.
        rollout_model: ``model`` with an adapter merged, to sample with in its place; what it drew is then kept with
            its dense log-probs.
    """

    def __init__(
        self,
        model: LanguageModel,
        attention: AttentionConfig,
        rollout: RolloutConfig,
        mismatch: MismatchConfig,
        rewards: RewardPool,
        *,
        recompute_tokens: int,
        reference: LanguageModel | None = None,
        releases_cache: bool = False,
        rollout_model: LanguageModel | None = None,
    ) -> None:
        self.model = model
        self._attention = attention
        self._has_adapter = rollout_model is not None
        self.rollout = rollout.model_copy(update={"keep_hidden": rollout.keep_hidden or mismatch.exact})
        self.engine = build_engine(model if rollout_model is None else rollout_model, attention, self.rollout)
        self._mismatch = mismatch
        self._page_size = attention.page_size
        self._rewards = rewards
        self._recompute_tokens = recompute_tokens
        self._reference = reference
        self._releases_cache = releases_cache

    def sampling_with(self, rollout: RolloutConfig) -> Collector:
        """A collector with other sampling settings over the same engine and cache."""
        other = copy.copy(self)
        other.rollout = rollout.model_copy(update={"keep_hidden": self.rollout.keep_hidden})
        return other

    def without_adapter(self) -> Collector:
        """A collector that samples with ``model`` itself; where an adapter is merged, over a cache of its own."""
        if not self._has_adapter:
            return self
        other = copy.copy(self)
        other.engine = build_engine(self.model, self._attention, self.rollout)
        other._has_adapter, other._releases_cache = False, True
        return other

    def new_stream(self) -> MismatchStream:
        return MismatchStream(
            bin_tokens=self._mismatch.bin_tokens, num_bins=self._mismatch.num_bins, quantile=self._mismatch.quantile
        )

    def collect(
        self,
        prompts: Sequence[Prompt],
        policy: SparsityPolicy,
        stream: MismatchStream,
        timings: Timings,
        *,
        step: int,
        policy_version: int,
        on_step: Callable[[EngineStats], None] | None = None,
    ) -> Collected:
        """``rollout.samples_per_prompt`` samples of each prompt; ``stream`` and ``timings`` take in what was seen."""
        requests = self._requests(prompts, step)
        started = time.perf_counter()
        traces = sorted(
            self.engine.generate(requests, policy, policy_version=policy_version, on_step=on_step), key=lambda t: t.key
        )
        if self._releases_cache:
            self.engine.release()
        rolled = time.perf_counter()
        students: list[StudentSample] = []
        traces = score_traces(
            self.model,
            traces,
            max_tokens=self._recompute_tokens,
            on_topk=(lambda trace, logp_TK: students.append(_student(trace, logp_TK))) if self._has_adapter else None,
        )
        references = self._reference_logprobs(traces)
        for trace in traces:
            stream.observe(trace.mismatch(self._page_size))
        recomputed = time.perf_counter()
        by_group = {prompt.group: prompt for prompt in prompts}
        texts = [self._completion(trace, by_group[trace.key.prompt]) for trace in traces]
        outcomes = self._rewards.score(texts)
        timings.rollout += rolled - started
        timings.recompute += recomputed - rolled
        timings.reward += time.perf_counter() - recomputed
        timings.generated_tokens += self.engine.stats.generated_tokens
        timings.preemptions += self.engine.stats.preemptions
        samples = [
            _sample(trace, text, outcome, reference)
            for trace, text, outcome, reference in zip(traces, texts, outcomes, references, strict=True)
        ]
        return Collected(samples, texts, [_tail(trace, self._mismatch.quantile) for trace in traces], students)

    def _requests(self, prompts: Sequence[Prompt], step: int) -> list[Request]:
        rollout = self.rollout
        sampling = SamplingParams(
            temperature=rollout.temperature,
            greedy=rollout.greedy,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            max_tokens=rollout.max_tokens,
            stop_ids=self.model.eos_ids | frozenset(rollout.stop_token_ids),
        )
        return [
            Request(SampleKey(rollout.seed, step, prompt.group, sample), prompt.ids, sampling)
            for prompt in prompts
            for sample in range(rollout.samples_per_prompt)
        ]

    def _reference_logprobs(self, traces: Sequence[Trace]) -> list[torch.Tensor | None]:
        if self._reference is None:
            return [None] * len(traces)
        scored = score_traces(self._reference, traces, max_tokens=self._recompute_tokens)
        return [trace.scores().logprobs for trace in scored]

    def _completion(self, trace: Trace, prompt: Prompt) -> Completion:
        text = self.model.tokenizer.decode(trace.token_ids.tolist(), skip_special_tokens=True)
        return Completion(
            prompt_id=prompt.example.prompt_id,
            prompt=prompt.text,
            text=text,
            num_tokens=len(trace.token_ids),
            finish_reason=trace.finish_reason,
            fields=prompt.example.fields,
        )


def _sample(trace: Trace, text: Completion, outcome: RewardOutcome, reference: torch.Tensor | None) -> Sample:
    return Sample(
        key=trace.key,
        prompt_id=text.prompt_id,
        prompt_ids=trace.prompt_ids,
        token_ids=trace.token_ids,
        rollout_logp_T=trace.logprobs,
        old_logp_T=trace.scores().logprobs,
        reference_logp_T=reference,
        finish_reason=trace.finish_reason,
        reward=outcome.value,
        reward_error=outcome.error,
        reward_parts=dict(outcome.parts),
    )


def _student(trace: Trace, topk_logp_TK: torch.Tensor) -> StudentSample:
    return StudentSample(dataclasses.replace(trace, hidden=None), teacher_topk_logp_TK=topk_logp_TK)


def _tail(trace: Trace, quantile: float) -> float | None:
    scores = trace.scores()
    acceptance = scores.acceptance_lower if scores.acceptance_exact is None else scores.acceptance_exact
    return float(torch.quantile(acceptance, quantile)) if len(acceptance) else None


def merged_stream(states: Sequence[dict[str, Any]]) -> MismatchStream:
    """One stream of all ranks' ``state_dict``s."""
    merged = MismatchStream.from_state_dict(states[0])
    for state in states[1:]:
        merged.merge(MismatchStream.from_state_dict(state))
    return merged
