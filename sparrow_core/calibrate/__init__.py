"""Calibration: from a model and prompts to the cheapest schedule that keeps the tail above tau."""
