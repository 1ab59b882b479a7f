"""One self-contained HTML page about measured runs, calibrations and closed loops (docs/replay-and-report.md)."""
