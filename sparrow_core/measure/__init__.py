"""Measured rollouts: generate, recompute densely, sum up by length, draw."""
