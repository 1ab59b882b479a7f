"""RL objectives composed of small parts: each file below is one part, chosen by name in the configuration."""
