"""What a rollout leaves behind: one record per finished sample, and files of them."""

from sparrow_core.trace.files import TraceFileError
from sparrow_core.trace.record import DenseScores, FinishReason, SampleKey, Trace
from sparrow_core.trace.trace_set import TraceMeta, TraceSet

__all__ = ["DenseScores", "FinishReason", "SampleKey", "Trace", "TraceFileError", "TraceMeta", "TraceSet"]
