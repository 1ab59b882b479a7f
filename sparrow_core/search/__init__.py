"""Schedule search: the cheapest pages per length bin whose tail meets tau, exactly."""

from __future__ import annotations

from sparrow_core.search.isotonic import isotonic, running_max
from sparrow_core.search.optimal import BinChoice, Candidate, SearchResult, optimal_schedule
from sparrow_core.search.tail_table import TailEntry, TailRow, TailTable, read_tail_table
from sparrow_core.search.trajectory import bin_costs, trajectory_cost

__all__ = [
    "BinChoice",
    "Candidate",
    "SearchResult",
    "TailEntry",
    "TailRow",
    "TailTable",
    "bin_costs",
    "isotonic",
    "optimal_schedule",
    "read_tail_table",
    "running_max",
    "trajectory_cost",
]
