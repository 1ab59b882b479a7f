"""Where prompts come from, how they are rendered, and in which order they are taken."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny

from sparrow_core.config.base import PluginOf, Section
from sparrow_core.contracts import PluginConfig

DataPlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf("sparrow.data")]


class DataConfig(Section):
    source: DataPlugin = Field(description="where prompts come from")
    chat: bool = Field(False, description="render text prompts as a user message with the model's template")
    system: str | None = Field(None, min_length=1, description="a system message before prompts that use the template")
    shuffle: bool = Field(True, description="another order every epoch; false keeps the source's order")
    seed: int = Field(0, ge=0, description="of the order")
    max_prompt_tokens: int | None = Field(None, ge=1, description="longest prompt; null sets no limit")
    too_long: Literal["error", "drop"] = Field("error", description="what to do with prompts past max_prompt_tokens")
