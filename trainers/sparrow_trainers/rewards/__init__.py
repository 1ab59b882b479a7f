"""Rewards: plugins that score completions, and the pool of worker processes that runs them."""

from sparrow_trainers.rewards.config import RewardsConfig, RewardTerm
from sparrow_trainers.rewards.pool import RewardOutcome, RewardPool

__all__ = ["RewardOutcome", "RewardPool", "RewardTerm", "RewardsConfig"]
