"""One finished sample: what was drawn, with which probability and budget, and what the dense policy says of it.

Shapes: P prompt tokens, T drawn tokens, K ids kept per token, D width of the final hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from sparrow_core.errors import InputError
from sparrow_core.mismatch.checks import MismatchError
from sparrow_core.mismatch.stream import TokenMismatch

FinishReason = Literal["stop", "length", "context"]
"""``stop``: a stop id was drawn; ``length``: max_tokens reached; ``context``: the model's context is full."""

FINISH_REASONS: tuple[str, ...] = get_args(FinishReason)


@dataclass(frozen=True, slots=True, order=True)
class SampleKey:
    """Names a sample; its draws depend on nothing else."""

    seed: int
    step: int
    prompt: int
    sample: int


@dataclass(frozen=True, slots=True, eq=False)
class DenseScores:
    """What the dense policy says of T drawn tokens, at the rollout's temperature; float32 ``[T]`` each."""

    logprobs: torch.Tensor
    acceptance_lower: torch.Tensor
    acceptance_upper: torch.Tensor
    acceptance_exact: torch.Tensor | None = None

    def __post_init__(self) -> None:
        num_tokens = len(self.logprobs)
        for name in ("logprobs", "acceptance_lower", "acceptance_upper", "acceptance_exact"):
            value = getattr(self, name)
            if value is not None:
                _require(f"dense.{name}", value, torch.float32, (num_tokens,))

    def equals(self, other: DenseScores) -> bool:
        """Bitwise equality."""
        return _same_fields(self, other, tuple(self.__dataclass_fields__))


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One finished sample. All tensors live on the host.

    Raises InputError when a field's shape or dtype is wrong, MismatchError on NaN log-probs with their position.
    """

    key: SampleKey
    prompt_ids: torch.Tensor
    """int32 ``[P]``."""
    token_ids: torch.Tensor
    """int32 ``[T]``, a stop id included."""
    logprobs: torch.Tensor
    """float32 ``[T]`` of the drawn tokens at rollout (sparse), of the untruncated softmax at ``temperature``."""
    topk_ids: torch.Tensor
    """int32 ``[T, K]``, most likely first."""
    topk_logprobs: torch.Tensor
    """float32 ``[T, K]``, as ``logprobs``."""
    pages: torch.Tensor
    """int32 ``[T]`` budget of the sparse layers, capped at the pages the sequence had."""
    finish_reason: FinishReason
    temperature: float
    top_p: float
    top_k: int
    policy_version: int
    hidden: torch.Tensor | None = None
    """``[T, D]`` final hidden states; the rollout's full distribution is their softmax through the lm_head."""
    dense: DenseScores | None = None

    def __post_init__(self) -> None:
        self._check_shapes()
        for name, values_T in (("logprobs", self.logprobs), ("topk_logprobs", self.topk_logprobs)):
            _require_no_nan(f"{name} of {self.key}", values_T)
        if self.dense is not None:
            _require_no_nan(f"dense.logprobs of {self.key}", self.dense.logprobs)
        if self.finish_reason not in FINISH_REASONS:
            raise InputError(
                f"trace.finish_reason={self.finish_reason!r} is unknown; give one of {', '.join(FINISH_REASONS)}"
            )

    def _check_shapes(self) -> None:
        num_tokens, width = len(self.token_ids), self.topk_ids.shape[-1]
        _require("trace.prompt_ids", self.prompt_ids, torch.int32, (len(self.prompt_ids),))
        _require("trace.token_ids", self.token_ids, torch.int32, (num_tokens,))
        _require("trace.logprobs", self.logprobs, torch.float32, (num_tokens,))
        _require("trace.topk_ids", self.topk_ids, torch.int32, (num_tokens, width))
        _require("trace.topk_logprobs", self.topk_logprobs, torch.float32, (num_tokens, width))
        _require("trace.pages", self.pages, torch.int32, (num_tokens,))
        if self.hidden is not None:
            if not self.hidden.is_floating_point():
                raise InputError(f"trace.hidden has dtype {self.hidden.dtype}; give floating-point hidden states")
            _require("trace.hidden", self.hidden, self.hidden.dtype, (num_tokens, self.hidden.shape[-1]))
        if self.dense is not None:
            _require("trace.dense.logprobs", self.dense.logprobs, torch.float32, (num_tokens,))

    @property
    def lengths(self) -> torch.Tensor:
        """int64 ``[T]``: context length each token was predicted from, the input token counted."""
        return len(self.prompt_ids) + torch.arange(len(self.token_ids))

    def attended(self, page_size: int) -> torch.Tensor:
        """int64 ``[T]``: tokens each KV head of a sparse layer attended to.

        Every selected page is full but the sequence's last one, which is always among them.
        """
        lengths_T = self.lengths
        num_pages_T = (lengths_T + page_size - 1) // page_size
        return lengths_T - (num_pages_T - self.pages).clamp(min=0) * page_size

    def scores(self) -> DenseScores:
        """The dense scores. Raises InputError naming this trace when it has none."""
        if self.dense is None:
            raise InputError(f"the trace of {self.key} has no dense scores; score the traces with the model first")
        return self.dense

    def mismatch(self, page_size: int) -> TokenMismatch:
        """This trace's tokens for a MismatchStream. Raises InputError when it has no dense scores."""
        scores = self.scores()
        return TokenMismatch(
            lengths_T=self.lengths,
            lower_T=scores.acceptance_lower,
            upper_T=scores.acceptance_upper,
            pages_T=self.pages,
            attended_T=self.attended(page_size),
            exact_T=scores.acceptance_exact,
        )

    def equals(self, other: Trace) -> bool:
        """Bitwise equality of every field."""
        names = tuple(n for n in self.__dataclass_fields__ if n != "dense")
        if self.dense is None or other.dense is None:
            return self.dense is other.dense and _same_fields(self, other, names)
        return self.dense.equals(other.dense) and _same_fields(self, other, names)


def _require(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise InputError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; it must be {dtype} {shape}")
    if tensor.device.type != "cpu":
        raise InputError(f"{name} is on {tensor.device}; traces live on the host, give tensor.cpu()")


def _require_no_nan(name: str, values: torch.Tensor) -> None:
    bad = values.isnan()
    if bool(bad.any()):
        raise MismatchError(f"{name} is NaN at token {int(bad.nonzero()[0][0])}")


def _same_fields(first: object, second: object, names: tuple[str, ...]) -> bool:
    for name in names:
        a, b = getattr(first, name), getattr(second, name)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.dtype != b.dtype or a.shape != b.shape:
                return False
            a, b = (x.contiguous().view(torch.uint8) if x.numel() else x for x in (a, b))
            if not torch.equal(a, b):
                return False
        elif a is not b and a != b:
            return False
    return True
