"""Procedural tasks that a small model can learn on a CPU, and the supervised warm start that teaches it their form."""
