"""torchtitan's components, put together for a model of ``sparrow_core.model``: ranks, parallelism, optimizer, state."""
