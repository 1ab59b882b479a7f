"""Pages by context length, from a file that calibration wrote or from a published preset.

The presets are the schedules of "Sparrow: Sparse Rollout for Stable and Efficient Long-context RL of Large Language
Models" (arXiv 2606.08446), named ``<model>-<tau>``. They count pages of 16 tokens in bins of 2000 tokens. The published
numbers are the middle pages, to which one sink and two recent pages are added here. ``qwen3-8b-0.86`` holds 385 middle
pages in bin 17, kept as published; every other number is 29 + 16 k, so 381 was probably meant.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

from pydantic import Field, model_validator

from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.schedule_file import check_layout, read_schedule


class ScheduleConfig(PluginConfig):
    type: str = "schedule"
    preset: str | None = Field(None, description="name of a published schedule")
    file: str | None = Field(None, description="a schedule file, as calibration writes it")

    @model_validator(mode="after")
    def _one_source(self) -> ScheduleConfig:
        if (self.preset is None) == (self.file is None):
            given = "both are set" if self.preset is not None else "neither is set"
            raise InputError(f"needs exactly one of 'preset' and 'file', but {given}")
        return self


class SchedulePolicy(SparsityPolicy):
    """Follows one fixed schedule.

    Raises InputError when the preset is unknown, the file is damaged, or either counts other pages than the layout.
    """

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = ScheduleConfig

    def __init__(self, config: PluginConfig, layout: SparseLayout) -> None:
        super().__init__(config, layout)
        assert isinstance(config, ScheduleConfig)
        if config.preset is not None:
            origin, self._schedule = f"policy.preset={config.preset!r}", preset(config.preset)
        else:
            assert config.file is not None
            origin, self._schedule = f"policy.file={config.file!r}", read_schedule(config.file).schedule
        check_layout(self._schedule, layout, origin)

    def schedule(self) -> BudgetSchedule:
        return self._schedule


def preset_names() -> list[str]:
    return sorted(_published()["middle_pages_per_bin"])


def preset(name: str) -> BudgetSchedule:
    """The published schedule called ``name``, sink and recent pages included. Raises InputError when it is unknown."""
    data = _published()
    middle = data["middle_pages_per_bin"].get(name)
    if middle is None:
        close = get_close_matches(name, preset_names(), n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"policy.preset={name!r} is unknown; {hint}the presets are {', '.join(preset_names())}")
    sink, recent = data["reserved_pages"]["sink"], data["reserved_pages"]["recent"]
    pages = tuple(count + sink + recent for count in middle)
    return BudgetSchedule(pages, data["bin_tokens"], data["page_size"], sink, recent)


@cache
def _published() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(files("sparrow_policies").joinpath("presets.json").read_text(encoding="utf-8"))
    return data
