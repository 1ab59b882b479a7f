"""Timings of decode steps, rollouts and kernels beside their byte floors, and memory plans."""
