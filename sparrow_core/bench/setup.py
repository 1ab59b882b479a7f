"""What every ``sparrow bench`` command settles first: configuration, device, dtype, hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sparrow_core.bench.environment import environment
from sparrow_core.bench.floors import hardware_for
from sparrow_core.bench.steps import Timing
from sparrow_core.config import RunConfig, load_config
from sparrow_core.errors import InputError
from sparrow_core.hardware import Hardware
from sparrow_core.model import LanguageModel, load_model, resolve_device, resolve_dtype

_SECTIONS = ("attention", "rollout")


@dataclass(frozen=True, slots=True)
class BenchSetup:
    config: RunConfig
    """Its ``attention`` and ``rollout`` sections count."""
    device: torch.device
    dtype: torch.dtype
    hardware_name: str
    hardware: Hardware
    timing: Timing

    @property
    def bandwidth(self) -> float:
        """Bytes per second that floors divide by."""
        return self.hardware.floor_bandwidth

    def load(self, source: str) -> LanguageModel:
        return load_model(source, dtype=self.dtype, device=self.device, decode_layout=True)

    def as_json(self) -> dict[str, Any]:
        attention = self.config.attention.model_dump(mode="json")
        return {
            "environment": environment(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "hardware": self.hardware_name,
            "floor_bandwidth": self.bandwidth,
            "attention": attention,
            "rollout": self.config.rollout.model_dump(mode="json"),
            "timing": asdict(self.timing),
        }


def bench_setup(
    path: Path | None,
    overrides: Sequence[str],
    *,
    device: str = "auto",
    dtype: str = "auto",
    hardware: str | None = None,
    timing: tuple[int, int] = (1, 1),
) -> BenchSetup:
    """Settings from a config file and ``key=value`` overrides.

    The backend is ``triton`` on CUDA and ``sdpa`` elsewhere unless the configuration names one.

    Raises InputError for a device, dtype, hardware or section that cannot be used.
    """
    resolved = resolve_device(device)
    config = load_config(path, list(overrides))
    others = sorted(config.model_fields_set - set(_SECTIONS))
    if others:
        raise InputError(
            f"bench reads the sections attention and rollout, not {others[0]}; "
            "the model is chosen by --model, --dtype and --device, budgets by the command's own options"
        )
    if "backend" not in config.attention.model_fields_set and resolved.type == "cuda":
        config = load_config(path, ["attention.backend=triton", *overrides])
    name, entry = hardware_for(hardware, resolved)
    return BenchSetup(config, resolved, resolve_dtype(dtype, resolved), name, entry, Timing(*timing))


def numbers(option: str, values: Sequence[str] | None, least: int = 1) -> list[int]:
    """Whole numbers of a repeatable option whose values may also be separated by commas."""
    parts = [part for value in values or [] for part in value.split(",") if part.strip()]
    wrong = [part for part in parts if not part.strip().isdecimal() or int(part) < least]
    if wrong:
        raise InputError(f"{option}={wrong[0]!r} must be a whole number of at least {least}")
    return list(dict.fromkeys(int(part) for part in parts))
