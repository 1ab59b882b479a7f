"""Contracts, engine, model, mismatch and command line: everything that is not a plugin."""
