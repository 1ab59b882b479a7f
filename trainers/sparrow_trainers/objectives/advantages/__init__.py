"""Advantages: one number per sequence from the rewards of its group or batch."""
