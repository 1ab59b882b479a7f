"""What one sees of a training run: step records on disk and in trackers, sample texts, progress."""

from sparrow_trainers.run_log.config import LogConfig, SamplesConfig, TrackersConfig
from sparrow_trainers.run_log.log import RunLog
from sparrow_trainers.run_log.progress import TrainProgress
from sparrow_trainers.run_log.samples import SampleText

__all__ = ["LogConfig", "RunLog", "SampleText", "SamplesConfig", "TrackersConfig", "TrainProgress"]
