"""Corrections of the mismatch between the sparse rollout and the dense policy: weights and rejections."""
