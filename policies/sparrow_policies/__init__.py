"""Sparsity policies, one per file."""
