"""The sparse student's forward over whole sequences, with gradients, under the page sets of a rollout."""

from sparrow_core.sparse_training.plan import SparseTokens, pack_traces
from sparrow_core.sparse_training.session import SparseTrainingSession

__all__ = ["SparseTokens", "SparseTrainingSession", "pack_traces"]
