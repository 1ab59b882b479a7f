"""What of a training run is logged beside ``metrics.jsonl`` and TensorBoard, which are always written."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparrow_core.config.base import Section, section_field


class SamplesConfig(Section):
    every: int = Field(10, ge=0, description="write sample texts every so many steps; 0 writes none")
    count: int = Field(4, ge=1, description="samples per file, spread evenly over the step's samples")


class TrackersConfig(Section):
    """Trackers that are packages of their own: ``pip install 'sparrow-rollout[trackers]'``."""

    wandb: bool = Field(False, description="log to Weights & Biases too")
    trackio: bool = Field(False, description="log to Trackio too")
    project: str = Field("sparrow", min_length=1, description="the trackers' project")
    run_name: str | None = Field(None, min_length=1, description="null takes the output directory's name")
    wandb_mode: Literal["online", "offline"] = Field("online", description="offline keeps the run below the output")


class LogConfig(Section):
    samples: SamplesConfig = section_field()
    trackers: TrackersConfig = section_field()
