"""RL with sparse rollouts: collect, score, observe, update (docs/rl.md)."""
