"""What a sparsity policy is told of the adapter: the same tokens' acceptances without it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sparrow_core.contracts import SparsityPolicy
from sparrow_core.mismatch import MismatchStream


@runtime_checkable
class LearnsFromReference(Protocol):
    """A policy that wants the mismatch without the adapter too (``distill_aware``)."""

    def observe_reference(self, mismatch: MismatchStream, rung: int | None = None) -> None: ...


def observe_reference(policy: SparsityPolicy, stream: MismatchStream) -> None:
    """Hand the stream of the present schedule's tokens without the adapter to a policy that takes it."""
    if isinstance(policy, LearnsFromReference):
        policy.observe_reference(stream)
