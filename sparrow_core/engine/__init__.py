"""The rollout engine: page pool, scheduler, sampler, and the loop that ties them together."""

from sparrow_core.engine.engine import RolloutEngine
from sparrow_core.engine.options import EngineOptions
from sparrow_core.engine.page_pool import PagePool
from sparrow_core.engine.sampling import SamplingParams
from sparrow_core.engine.sequence import Request
from sparrow_core.engine.stats import EngineStats, attended_tokens

__all__ = [
    "EngineOptions",
    "EngineStats",
    "PagePool",
    "Request",
    "RolloutEngine",
    "SamplingParams",
    "attended_tokens",
]
