"""Conformance suites and hypothesis strategies for plugin authors. Needs pytest and hypothesis.

* ``BackendConformance``, ``SelectorConformance``, ``PolicyConformance``: derive a ``Test...`` class and name the plugin.
* ``paged_cases``: batches of any size over a paged cache; ``attend``: attention by its definition.
* ``sparrow_core.testing.mismatch``: strategies for acceptances and streams.
"""

from sparrow_core.testing.backends import BackendConformance
from sparrow_core.testing.oracle import assert_close, attend
from sparrow_core.testing.paged import PagedCase, paged_cases
from sparrow_core.testing.policies import PolicyConformance
from sparrow_core.testing.selectors import SelectorConformance

__all__ = [
    "BackendConformance",
    "PagedCase",
    "PolicyConformance",
    "SelectorConformance",
    "assert_close",
    "attend",
    "paged_cases",
]
