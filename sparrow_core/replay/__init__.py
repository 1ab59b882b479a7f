"""Recorded traces under other policies and thresholds, without a model (docs/replay-and-report.md)."""
