"""The ``sparrow`` command. Importing this package does not import torch; each command imports what it needs."""

from sparrow_core.cli.app import main

__all__ = ["main"]
