"""Building blocks of configuration models: sections, and fields that hold a plugin's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, SerializeAsAny
from pydantic_core import CoreSchema, core_schema

from sparrow_core import registry
from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError


class Section(BaseModel):
    """Base of every section and of every root model: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


@dataclass(frozen=True, slots=True)
class PluginOf:
    """Marks a field as the configuration of one plugin of ``group``, found by its ``type`` through the registry.

    The value is a mapping with ``type``, or the bare name: ``triton`` means ``{type: triton}``. The plugin's own
    ``Config`` validates the rest.
    """

    group: str

    def config_class(self, name: str) -> type[PluginConfig]:
        """Raises PluginError when the plugin is unknown or failed to load."""
        config: type[PluginConfig] = registry.load(self.group, name).Config
        return config

    def validate(self, value: Any) -> PluginConfig:
        if isinstance(value, PluginConfig):
            value = value.model_dump()
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, Mapping):
            raise InputError(f"must be a plugin's name or a mapping with 'type'; {self._known()}")
        if not isinstance(value.get("type"), str):
            raise InputError(f"has no 'type', the plugin's name; {self._known()}")
        return self.config_class(value["type"]).model_validate(dict(value))

    def _known(self) -> str:
        return f"{self.group} holds {', '.join(registry.names(self.group)) or 'no plugin'}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.validate, handler(source))


def plugin_field(default: str, description: str) -> Any:
    """A field whose default is the plugin called ``default``, loaded only when a configuration is made."""
    return Field(default, description=description)


def section_field() -> Any:
    """A field whose default is its section's own defaults, made only when a configuration is."""
    return Field({})


BackendPlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf("sparrow.backends")]
SelectorPlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf("sparrow.selectors")]
PolicyPlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf("sparrow.policies")]
