"""Page selectors, one per file. A new one derives from ``base.ScoredSelector`` and gives ``score``."""
