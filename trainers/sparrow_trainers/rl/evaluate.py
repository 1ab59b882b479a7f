"""Periodic evaluation: the current weights on fixed prompts, dense and under the current sparsity schedule."""

from __future__ import annotations

from sparrow_core import registry
from sparrow_core.contracts import SparsityPolicy
from sparrow_core.engine.build import build_policy
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.data.prompt_set import PromptSet
from sparrow_trainers.rl.collect import Collector, Prompt, Timings, merged_stream
from sparrow_trainers.rl.metrics import mismatch_metrics, response_metrics
from sparrow_trainers.titan.ranks import Ranks

_STEP = 0
"""Every evaluation draws with the same seeds, so that two differ by the weights alone."""


class Evaluator:
    """Evaluates the weights that ``collector`` samples with on the first ``evaluate.num_prompts`` of ``prompts``."""

    def __init__(
        self,
        config: TrainConfig,
        collector: Collector,
        policy: SparsityPolicy,
        prompts: PromptSet | None,
        ranks: Ranks,
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._ranks = ranks
        self._policies: dict[str, SparsityPolicy] = {}
        settings = config.evaluate
        rollout = config.rollout.model_copy(
            update={
                "temperature": settings.temperature,
                "greedy": settings.greedy,
                "top_p": settings.top_p,
                "samples_per_prompt": settings.samples_per_prompt,
                "max_tokens": settings.max_tokens or config.rollout.max_tokens,
            }
        )
        self._collectors = {"sparse": collector.sampling_with(rollout)}
        if settings.dense:
            self._collectors["dense"] = collector.without_adapter().sampling_with(rollout)
            dense_config = registry.load("sparrow.policies", "dense").Config(type="dense")
            self._policies["dense"] = build_policy(dense_config, config.attention.layout)
        if settings.sparse:
            self._policies["sparse"] = policy

    def is_due(self, step: int) -> bool:
        """True before step 0 and every ``evaluate.every`` steps from there."""
        return self._prompts is not None and step % self._config.evaluate.every == 0

    def evaluate(self, step: int) -> dict[str, float]:
        """``eval_dense/...`` and ``eval_sparse/...``; the policy observes nothing of it. Every rank must call it."""
        assert self._prompts is not None, "evaluate.every is 0"
        count = min(self._config.evaluate.num_prompts, len(self._prompts))
        mine = range(self._ranks.rank, count, self._ranks.world)
        prompts = [_prompt(index, self._prompts) for index in mine]
        metrics: dict[str, float] = {}
        for name, policy in self._policies.items():
            collector = self._collectors[name]
            stream = collector.new_stream()
            collected = collector.collect(prompts, policy, stream, Timings(), step=_STEP, policy_version=step)
            samples = [sample for part in self._ranks.gather(collected.samples) for sample in part]
            merged = merged_stream(self._ranks.gather(stream.state_dict()))
            found = response_metrics(samples) | mismatch_metrics(merged)
            metrics |= {f"eval_{name}/{key.replace('/', '_')}": value for key, value in found.items()}
        return metrics


def _prompt(index: int, prompts: PromptSet) -> Prompt:
    encoded = prompts[index]
    return Prompt(index, encoded.token_ids, encoded.example, encoded.text)
