"""Attend to every page: the policy that a sparse rollout is compared with."""

from __future__ import annotations

from typing import ClassVar

from sparrow_core.contracts import PluginConfig, SparsityPolicy
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule


class DenseConfig(PluginConfig):
    type: str = "dense"


class DensePolicy(SparsityPolicy):
    """A budget no sequence can exceed, at every length."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = DenseConfig

    def schedule(self) -> BudgetSchedule:
        return BudgetSchedule(
            (DENSE_PAGES,),
            page_size=self.layout.page_size,
            sink_pages=self.layout.sink_pages,
            recent_pages=self.layout.recent_pages,
        )
