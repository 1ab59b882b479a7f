"""Attention backends and page selectors, one per file."""
