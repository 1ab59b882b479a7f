"""The built-in policies without a controller through the conformance suite."""

from sparrow_core.testing import PolicyConformance
from sparrow_policies.dense import DensePolicy
from sparrow_policies.schedule import ScheduleConfig, SchedulePolicy
from sparrow_policies.static import StaticConfig, StaticPolicy


class TestDense(PolicyConformance):
    policy = DensePolicy


class TestStatic(PolicyConformance):
    policy = StaticPolicy
    config = StaticConfig(pages=32)


class TestPreset(PolicyConformance):
    policy = SchedulePolicy
    config = ScheduleConfig(preset="qwen3-1.7b-0.86")
