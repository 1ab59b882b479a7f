"""Where and how a figure was taken, and the JSON file that keeps it beside the raw rounds."""

from __future__ import annotations

import importlib.util
import json
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

FORMAT = 1


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def environment(device: torch.device) -> dict[str, Any]:
    """Device, versions and command line. ``device`` is ``cpu`` or ``cuda``."""
    return {
        "device": device.type,
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "flashinfer": _version("flashinfer-python") if importlib.util.find_spec("flashinfer") else None,
        "sparrow": _version("sparrow-rollout"),
        "command": shlex.join(["sparrow", *sys.argv[1:]]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_result(path: Path, kind: str, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """One JSON object: ``version``, ``bench`` (the command), ``settings`` (environment among them) and ``rows``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"version": FORMAT, "bench": kind, **settings, "rows": rows}
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
