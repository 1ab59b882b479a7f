"""Block-sparse attention with gradients: every query of a sequence over pages of its own."""
