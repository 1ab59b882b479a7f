"""Surrogate losses per token."""
