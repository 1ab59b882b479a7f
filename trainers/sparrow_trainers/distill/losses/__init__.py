"""Distances from the dense teacher to the sparse student, one per file (group ``sparrow.distill_losses``).

Every one takes log-probs over one support, see ``sparrow_trainers.distill.support``.
"""
