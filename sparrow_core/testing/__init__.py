"""Conformance suites and hypothesis strategies for plugin authors; they need pytest and hypothesis.

* ``BackendConformance``, ``SelectorConformance``, ``PolicyConformance``, ``CostModelConformance``: derive a
  ``Test...`` class and name the plugin.
* ``paged_cases``: batches of any size over a paged cache; ``attend``: attention by its definition.
* ``sparrow_core.testing.mismatch``: strategies for acceptances and streams.
* ``sparrow_core.testing.simulator``: streams with a known tail, to try policies on.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparrow_core.testing.backends import BackendConformance
    from sparrow_core.testing.cost_models import CostModelConformance
    from sparrow_core.testing.oracle import assert_close, attend
    from sparrow_core.testing.paged import PagedCase, paged_cases
    from sparrow_core.testing.policies import PolicyConformance
    from sparrow_core.testing.selectors import SelectorConformance

__all__ = [
    "BackendConformance",
    "CostModelConformance",
    "PagedCase",
    "PolicyConformance",
    "SelectorConformance",
    "assert_close",
    "attend",
    "paged_cases",
]

_MODULES = {
    "BackendConformance": "backends",
    "CostModelConformance": "cost_models",
    "PagedCase": "paged",
    "PolicyConformance": "policies",
    "SelectorConformance": "selectors",
    "assert_close": "oracle",
    "attend": "oracle",
    "paged_cases": "paged",
}

if "pytest" in sys.modules:
    # A failing suite then shows the values it compared, in a plugin's own tests too.
    sys.modules["pytest"].register_assert_rewrite(*{f"{__name__}.{module}" for module in _MODULES.values()})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
