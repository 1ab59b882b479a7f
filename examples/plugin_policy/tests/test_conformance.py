"""What holds for every policy."""

from sparrow_proportional import ProportionalPolicy

from sparrow_core.testing import PolicyConformance


class TestProportional(PolicyConformance):
    policy = ProportionalPolicy
