"""One suite for every sparsity policy::

from sparrow_core.testing import PolicyConformance

class TestMine(PolicyConformance):
    policy = MyPolicy
"""

from __future__ import annotations

import json
from typing import ClassVar

import torch

from sparrow_core.contracts import API_VERSION, PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.mismatch import MismatchStream, TokenMismatch
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.trace import SampleKey


class PolicyConformance:
    """Derive a class named ``Test...`` and set ``policy``."""

    policy: ClassVar[type[SparsityPolicy]]
    config: ClassVar[PluginConfig | None] = None
    """None: the policy's defaults."""
    layout: ClassVar[SparseLayout] = SparseLayout()

    def make(self) -> SparsityPolicy:
        return self.policy(self.config or self.policy.Config.model_validate({}), self.layout)

    def stream(self, policy: SparsityPolicy, acceptance: float, seed: int = 0) -> MismatchStream:
        """A finished rollout under the policy's own schedule whose acceptances lie around ``acceptance``."""
        schedule = policy.schedule()
        tokens, generator = 200 * schedule.num_bins, torch.Generator().manual_seed(seed)
        lengths_T = torch.randint(1, schedule.bin_tokens * schedule.num_bins, (tokens,), generator=generator)
        pages_T = torch.minimum(schedule.pages_at(lengths_T), -(-lengths_T // schedule.page_size))
        lower_T = (acceptance + 0.2 * (torch.rand(tokens, generator=generator) - 0.5)).clamp(0, 1)
        stream = MismatchStream(bin_tokens=schedule.bin_tokens, num_bins=schedule.num_bins)
        stream.observe(
            TokenMismatch(
                lengths_T=lengths_T,
                lower_T=lower_T,
                upper_T=(lower_T + 0.01).clamp(max=1),
                pages_T=pages_T,
                attended_T=torch.minimum(pages_T * schedule.page_size, lengths_T),
                exact_T=lower_T,
            )
        )
        return stream

    def observed(self, policy: SparsityPolicy) -> list[BudgetSchedule]:
        """The schedules after each of a few rollouts, good and bad ones."""
        schedules = []
        for seed, acceptance in enumerate((0.7, 0.95, 0.99, 0.8, 0.9)):
            policy.observe(self.stream(policy, acceptance, seed))
            schedules.append(self.checked(policy))
        return schedules

    def checked(self, policy: SparsityPolicy) -> BudgetSchedule:
        """The policy's schedule; it counts pages as the layout does, so every entry is at least sink + recent + 1."""
        schedule = policy.schedule()
        assert isinstance(schedule, BudgetSchedule), f"schedule() must return a BudgetSchedule, not {schedule!r}"
        for name in ("page_size", "sink_pages", "recent_pages"):
            counted, laid_out = getattr(schedule, name), getattr(self.layout, name)
            assert counted == laid_out, f"the schedule has {name}={counted} where the layout has {laid_out}"
        assert all(pages >= schedule.min_pages for pages in schedule.pages)
        return schedule

    def test_schedules_are_valid_before_and_after_observing(self) -> None:
        policy = self.make()
        assert policy.api_version == API_VERSION
        self.checked(policy)
        self.observed(policy)

    def test_same_observations_give_the_same_schedules(self) -> None:
        first, second = self.observed(self.make()), self.observed(self.make())
        assert first == second, "two policies that observed the same streams disagree"

    def test_asking_for_a_schedule_changes_nothing(self) -> None:
        policy = self.make()
        self.observed(policy)
        assert policy.schedule() == policy.schedule(), "the second of two calls gives another schedule"

    def test_a_stream_without_tokens_changes_nothing(self) -> None:
        policy = self.make()
        for _ in range(2):
            before = policy.schedule()
            policy.observe(MismatchStream(bin_tokens=before.bin_tokens, num_bins=before.num_bins))
            assert policy.schedule() == before, "observing an empty stream changed the schedule"
            self.observed(policy)

    def test_observing_leaves_the_stream_as_it_was(self) -> None:
        policy = self.make()
        stream = self.stream(policy, 0.9)
        before = stream.state_dict()
        policy.observe(stream)
        assert stream.state_dict() == before, "observe() changed the stream it was given"

    def test_saved_state_continues_identically(self) -> None:
        policy = self.make()
        self.observed(policy)
        state = json.loads(json.dumps(policy.state_dict(), allow_nan=False))
        loaded = self.make()
        loaded.load_state_dict(state)
        assert loaded.schedule() == policy.schedule(), "the schedule after load_state_dict() is not the saved one"
        assert self.observed(loaded) == self.observed(policy), "a policy restored from its state continues otherwise"

    def test_budgets_of_a_step(self) -> None:
        lengths_B = torch.tensor([1, 17, 4000], dtype=torch.int32)
        keys = [SampleKey(seed=0, step=0, prompt=row, sample=0) for row in range(3)]
        budgets_B = self.make().budgets(lengths_B, keys)
        if budgets_B is not None:
            least = self.layout.sink_pages + self.layout.recent_pages + 1
            assert budgets_B.dtype == torch.int32, f"budgets() must give int32, not {budgets_B.dtype}"
            assert budgets_B.shape == lengths_B.shape, "budgets() must give one budget per sequence"
            fewest = int(budgets_B.min())
            assert fewest >= least, f"budgets() gives {fewest} pages, below sink + recent + 1 = {least}"
