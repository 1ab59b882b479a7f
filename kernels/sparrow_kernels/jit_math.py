"""Arithmetic that compiled and interpreted kernels share."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import triton
import triton.language as tl


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit
def dot(a, b, acc, WIDEN: tl.constexpr):
    """``acc + a @ b``, products exact and sums in float32. ``WIDEN`` (the interpreter's dot knows no bfloat16)
    converts the operands first, which changes no value."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")
