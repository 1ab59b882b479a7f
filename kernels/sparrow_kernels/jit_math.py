"""Arithmetic that compiled and interpreted kernels share."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit  # type: ignore[untyped-decorator]
def dot(a: Any, b: Any, acc: Any, WIDEN: tl.constexpr) -> Any:
    """``acc + a @ b``, products exact and sums in float32. ``WIDEN`` (the interpreter's dot knows no bfloat16)
    converts the operands first, which changes no value."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")
