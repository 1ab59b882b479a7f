"""One page budget for every length. Its mismatch grows with length, which the other policies set out to mend."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.schedule import BudgetSchedule


class StaticConfig(PluginConfig):
    type: str = "static"
    pages: int = Field(ge=1, description="pages a sequence attends to, the sink and recent ones among them")


class StaticPolicy(SparsityPolicy):
    """``policy.pages`` pages at every length. Raises InputError when they cannot hold sink + recent + 1."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = StaticConfig

    def __init__(self, config: PluginConfig, layout: SparseLayout) -> None:
        super().__init__(config, layout)
        assert isinstance(config, StaticConfig)
        least = layout.sink_pages + layout.recent_pages + 1
        if config.pages < least:
            raise InputError(
                f"policy.pages={config.pages} is below sink + recent + 1 = "
                f"{layout.sink_pages} + {layout.recent_pages} + 1; give at least {least} pages"
            )
        self._schedule = BudgetSchedule(
            (config.pages,),
            page_size=layout.page_size,
            sink_pages=layout.sink_pages,
            recent_pages=layout.recent_pages,
        )

    def schedule(self) -> BudgetSchedule:
        return self._schedule
