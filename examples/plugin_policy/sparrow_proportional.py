"""Every context attends to the same share of its pages, at least ``floor`` of them; the share follows the tail."""

import math
from typing import Any, ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream
from sparrow_core.schedule import BudgetSchedule


class ProportionalConfig(PluginConfig):
    type: str = "proportional"
    share: float = Field(0.5, gt=0, le=1, description="share of a context's pages to begin with")
    floor: int = Field(16, ge=1, description="fewest pages of any context")
    tau: float = Field(0.86, gt=0, lt=1, description="least tail")
    margin: float = Field(0.02, ge=0, description="the share shrinks while every tail exceeds tau + margin")
    step: float = Field(1.25, gt=1, description="factor by which the share grows or shrinks")
    min_tokens: int = Field(400, ge=1, description="a bin with fewer tokens is not judged")
    bin_tokens: int = Field(2000, ge=1)
    num_bins: int = Field(20, ge=1)


class ProportionalPolicy(SparsityPolicy):
    """Pages of a bin = share x pages of its longest context. Raises InputError when ``floor`` is below the least."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = ProportionalConfig

    def __init__(self, config: PluginConfig, layout: SparseLayout) -> None:
        super().__init__(config, layout)
        assert isinstance(config, ProportionalConfig)
        self.settings, self.share = config, config.share
        least = layout.sink_pages + layout.recent_pages + 1
        if config.floor < least:
            raise InputError(f"policy.floor={config.floor} is below sink + recent + 1; give at least {least} pages")

    def schedule(self) -> BudgetSchedule:
        settings, layout = self.settings, self.layout
        full = [(index + 1) * settings.bin_tokens / layout.page_size for index in range(settings.num_bins)]
        pages = tuple(max(settings.floor, math.ceil(self.share * count)) for count in full)
        return BudgetSchedule(pages, settings.bin_tokens, layout.page_size, layout.sink_pages, layout.recent_pages)

    def observe(self, mismatch: MismatchStream) -> None:
        judged = [each.tail_interval for each in mismatch.bins() if each.tokens >= self.settings.min_tokens]
        intervals = [interval for interval in judged if interval is not None]
        if any(high < self.settings.tau for _, high in intervals):
            self.share = min(1.0, self.share * self.settings.step)
        elif intervals and all(low > self.settings.tau + self.settings.margin for low, _ in intervals):
            self.share /= self.settings.step

    def state_dict(self) -> dict[str, Any]:
        return {"share": self.share}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.share = float(state["share"])
