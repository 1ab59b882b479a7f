"""Cost models: what a decode step costs, by context length and page budget (docs/cost-model.md)."""

from __future__ import annotations

from sparrow_policies.cost.analytic import AnalyticCost, AnalyticEquivalentFlops
from sparrow_policies.cost.hardware import HARDWARE, MODELS, Hardware, ModelShape
from sparrow_policies.cost.measured import (
    MeasuredCost,
    MeasuredRow,
    MeasuredTable,
    fit_measured,
    load_measured,
    save_measured,
)

__all__ = [
    "HARDWARE",
    "MODELS",
    "AnalyticCost",
    "AnalyticEquivalentFlops",
    "Hardware",
    "MeasuredCost",
    "MeasuredRow",
    "MeasuredTable",
    "ModelShape",
    "fit_measured",
    "load_measured",
    "save_measured",
]
