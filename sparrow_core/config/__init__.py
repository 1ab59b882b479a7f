"""Configuration: pydantic models, YAML files, dotted overrides, and plugin sections resolved by the registry."""

from sparrow_core.config.base import (
    BackendPlugin,
    PluginOf,
    PolicyPlugin,
    Section,
    SelectorPlugin,
    plugin_field,
    section_field,
)
from sparrow_core.config.load import load_as, load_config, resolved, save_config, validate
from sparrow_core.config.models import (
    AttentionConfig,
    MismatchConfig,
    ModelConfig,
    PromptsConfig,
    RolloutConfig,
    RunConfig,
    check_policy,
    with_mismatch_settings,
)

__all__ = [
    "AttentionConfig",
    "BackendPlugin",
    "MismatchConfig",
    "ModelConfig",
    "PluginOf",
    "PolicyPlugin",
    "PromptsConfig",
    "RolloutConfig",
    "RunConfig",
    "Section",
    "SelectorPlugin",
    "check_policy",
    "load_as",
    "load_config",
    "plugin_field",
    "resolved",
    "save_config",
    "section_field",
    "validate",
    "with_mismatch_settings",
]
