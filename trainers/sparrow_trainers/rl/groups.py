"""The groups of one RL step: all that were drawn, and those to train on."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow_trainers.objectives.dynamic_sampling import DynamicSampling, SamplingDecision, SamplingOutcome
from sparrow_trainers.rl.sample import Sample


class GroupCollection:
    """Takes in round after round of groups until there are as many as the step wants (``objective.dynamic_sampling``).

    The same on every rank, as all take in all samples.
    """

    def __init__(self, sampling: DynamicSampling) -> None:
        self.drawn: list[Sample] = []
        """In the order drawn; the samples of a group next to each other."""
        self._sampling = sampling
        self._rounds = 0
        self._decision: SamplingDecision | None = None

    @property
    def num_drawn(self) -> int:
        """Groups so far."""
        return len({sample.key.prompt for sample in self.drawn})

    @property
    def wanted(self) -> int:
        """Groups of the next round; 0 when there is none."""
        return self._sampling.wanted if self._decision is None else self._decision.missing

    @property
    def kept(self) -> list[Sample]:
        """Samples to train on; empty when every group's rewards were all equal and rounds ran out."""
        assert self._decision is not None, "nothing was drawn"
        kept = frozenset(self._decision.kept)
        return [sample for sample in self.drawn if sample.key.prompt in kept]

    def add(self, samples: Sequence[Sample]) -> None:
        self.drawn.extend(samples)
        self._rounds += 1
        rewards: dict[int, list[float]] = {}
        for sample in self.drawn:
            rewards.setdefault(sample.key.prompt, []).append(sample.reward)
        self._decision = self._sampling.decide(rewards, self._rounds)

    def metrics(self) -> dict[str, float]:
        assert self._decision is not None, "nothing was drawn"
        decision = self._decision
        return {
            "groups/drawn": float(self.num_drawn),
            "groups/kept": float(len(decision.kept)),
            "groups/zero_variance": float(len(decision.flat)),
            "groups/surplus": float(len(decision.surplus)),
            "groups/rounds": float(self._rounds),
            "groups/exhausted": float(decision.outcome is SamplingOutcome.EXHAUSTED),
        }
