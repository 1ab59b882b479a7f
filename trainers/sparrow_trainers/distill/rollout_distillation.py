"""Distillation within RL (Algorithm 1 of arXiv 2606.08446): after the dense update, on the rollouts it was made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from sparrow_core.config import AttentionConfig
from sparrow_core.contracts import SparsityPolicy
from sparrow_core.mismatch import MismatchStream
from sparrow_core.model import LanguageModel
from sparrow_core.trace import SampleKey
from sparrow_trainers.distill.adapter_training import AdapterTraining
from sparrow_trainers.distill.config import TrainDistillConfig
from sparrow_trainers.distill.metrics import stream_metrics, update_metrics
from sparrow_trainers.distill.policy_feedback import observe_reference
from sparrow_trainers.distill.teacher import StudentSample
from sparrow_trainers.rl.collect import merged_stream
from sparrow_trainers.titan.ranks import Ranks


class RolloutDistillation:
    """The adapter of ``policy``'s rollouts. Every rank must make the same calls, with samples of its own.

    The teacher is the dense policy that the rollout ran on, by the log-probs that the dense recompute stored.
    """

    def __init__(
        self, policy: LanguageModel, attention: AttentionConfig, config: TrainDistillConfig, ranks: Ranks
    ) -> None:
        self.training = AdapterTraining(policy, attention, config, ranks.sum_all)
        self._config = config
        self._ranks = ranks
        self._samples: list[StudentSample] = []

    def take(self, samples: Sequence[StudentSample]) -> None:
        """Keep this rank's samples of the step."""
        self._samples.extend(samples)

    def reference(self, stream: MismatchStream, step: int, policy: SparsityPolicy) -> dict[str, float]:
        """``reference/...`` when it is due, before the update: the samples without the adapter; ``policy`` is told."""
        every = self._config.reference_every
        if not every or step % every:
            return {}
        forward_kl = self.training.observe(self._samples, stream, with_adapter=False)
        merged = merged_stream(self._ranks.gather(stream.state_dict()))
        observe_reference(policy, merged)
        return stream_metrics(merged, "reference", forward_kl)

    def train(
        self, new_stream: Callable[[], MismatchStream], advantages: Mapping[SampleKey, float]
    ) -> dict[str, float]:
        """``distill.updates`` updates on the samples with an advantage, then the rollout's weights; ``distill/...``.

        The step's samples are let go of. Without any advantage, on all ranks the same, nothing is trained.
        """
        samples = [
            dataclasses.replace(sample, advantage=advantages[sample.trace.key])
            for sample in self._samples
            if sample.trace.key in advantages
        ]
        self._samples = []
        metrics: dict[str, float] = {}
        if advantages:
            steps = [self.training.step(samples, new_stream()) for _ in range(self._config.updates)]
            metrics = update_metrics(steps)
        self.training.publish()
        return metrics
