"""The stream that feeds policies: acceptance by length bin, mergeable over batches, streams and ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from sparrow_core.errors import InputError
from sparrow_core.mismatch.checks import OVERSHOOT, MismatchError, require_acceptance
from sparrow_core.mismatch.sketch import AcceptanceSketch
from sparrow_core.schedule import length_bin

Kind = Literal["lower", "upper", "exact"]
KINDS: tuple[Kind, ...] = ("lower", "upper", "exact")


@dataclass(frozen=True, slots=True)
class TokenMismatch:
    """Acceptance of T drawn tokens and what the sparse layers read to draw them.

    Raises InputError when arrays differ in shape or a count is out of range, MismatchError on NaN, on an acceptance
    outside [0, 1], or on a lower bound above its upper bound (each by more than rounding).
    """

    lengths_T: torch.Tensor
    """Integer context length the token was predicted from, the input token counted."""
    lower_T: torch.Tensor
    upper_T: torch.Tensor
    pages_T: torch.Tensor
    """Integer budget in pages, capped at the pages the sequence had."""
    attended_T: torch.Tensor
    """Integer tokens each KV head of a sparse layer attended to, at most ``lengths_T``."""
    exact_T: torch.Tensor | None = None

    def __post_init__(self) -> None:
        arrays = {"lengths": self.lengths_T, "pages": self.pages_T, "attended": self.attended_T}
        for name, tensor in arrays.items():
            if tensor.is_floating_point():
                raise InputError(f"token mismatch {name} has dtype {tensor.dtype}; give integers")
        arrays |= {"lower": self.lower_T, "upper": self.upper_T}
        if self.exact_T is not None:
            arrays["exact"] = self.exact_T
        for name, tensor in arrays.items():
            if tensor.dim() != 1 or tensor.shape != self.lengths_T.shape:
                raise InputError(
                    f"token mismatch {name} has shape {tuple(tensor.shape)}; "
                    f"every array must be one-dimensional of {self.lengths_T.numel()} tokens, as lengths is"
                )
        self._check_counts()
        for name in ("lower", "upper", "exact"):
            if name in arrays:
                require_acceptance(name, arrays[name])
        crossed_T = self.lower_T > self.upper_T + OVERSHOOT
        if bool(crossed_T.any()):
            at = int(crossed_T.nonzero()[0])
            raise MismatchError(
                f"lower={float(self.lower_T[at])} is above upper={float(self.upper_T[at])} at token {at}"
            )

    def _check_counts(self) -> None:
        for name, tensor in (("lengths", self.lengths_T), ("pages", self.pages_T), ("attended", self.attended_T)):
            if bool((tensor < 1).any()):
                at = int((tensor < 1).nonzero()[0])
                raise InputError(f"token mismatch {name} is {int(tensor[at])} at token {at}; it must be at least 1")
        over_T = self.attended_T > self.lengths_T
        if bool(over_T.any()):
            at = int(over_T.nonzero()[0])
            raise InputError(
                f"token mismatch attended is {int(self.attended_T[at])} at token {at}, "
                f"more than the {int(self.lengths_T[at])} tokens of its context"
            )


@dataclass(frozen=True, slots=True)
class BinStats:
    """What one length bin has seen. Statistics are None while ``tokens`` is 0."""

    lo: int
    """Shortest context of the bin, in tokens."""
    hi: int | None
    """First context length past the bin; None for the last, open one."""
    tokens: int
    mean: float | None
    """Mean of the lower bound."""
    tail_lower: float | None
    """Lower-tail quantile of the acceptance's lower bound; at most 1 / 4096 below its exact value."""
    tail_upper: float | None
    tail_exact: float | None
    """None unless every token of the bin has an exact acceptance."""
    tail_interval: tuple[float, float] | None
    """95 % confidence interval of ``tail_lower`` for independent tokens (``AcceptanceSketch.tail_confidence``)."""
    pages_mean: float | None
    kept_fraction: float | None
    """Attended over context tokens, both summed over the bin."""
    fraction_above_0999: float | None
    """Exact share of lower bounds above 0.999."""


@dataclass(slots=True)
class _Bin:
    """Integer state of one bin; adding two adds every field."""

    sketches: dict[Kind, AcceptanceSketch] = field(default_factory=lambda: {k: AcceptanceSketch() for k in KINDS})
    pages: int = 0
    attended: int = 0
    context: int = 0

    def merge(self, other: _Bin) -> None:
        for kind in KINDS:
            self.sketches[kind].merge(other.sketches[kind])
        self.pages += other.pages
        self.attended += other.attended
        self.context += other.context

    def tail(self, kind: Kind, quantile: float) -> float | None:
        sketch, tokens = self.sketches[kind], self.sketches["lower"].count
        return sketch.quantile(quantile) if tokens and sketch.count == tokens else None


class MismatchStream:
    """Acceptances by length bin (``sparrow_core.schedule.length_bin``), as mergeable sketches and integer sums.

    The state depends only on the tokens seen, bit for bit: not on their order, their batches or the order in
    which streams of several ranks are merged.

    Raises InputError when an argument is out of range.
    """

    def __init__(self, *, bin_tokens: int = 2000, num_bins: int = 20, quantile: float = 0.05) -> None:
        if bin_tokens < 1:
            raise InputError(f"mismatch.bin_tokens={bin_tokens} must be at least 1")
        if num_bins < 1:
            raise InputError(f"mismatch.num_bins={num_bins} must be at least 1")
        if not 0 < quantile < 1:
            raise InputError(f"mismatch.quantile={quantile} must lie in (0, 1)")
        self.bin_tokens = bin_tokens
        self.num_bins = num_bins
        self.quantile = quantile
        self._bins = [_Bin() for _ in range(num_bins)]

    @property
    def total(self) -> int:
        """Tokens seen, over all bins."""
        return sum(b.sketches["lower"].count for b in self._bins)

    def observe(self, tokens: TokenMismatch) -> None:
        """Take in one batch of tokens."""
        bins_T = length_bin(tokens.lengths_T, self.bin_tokens, self.num_bins)
        values: list[tuple[Kind, torch.Tensor]] = [("lower", tokens.lower_T), ("upper", tokens.upper_T)]
        if tokens.exact_T is not None:
            values.append(("exact", tokens.exact_T))
        for index in torch.bincount(bins_T).nonzero().flatten().tolist():
            mask_T, state = bins_T == index, self._bins[index]
            for kind, values_T in values:
                state.sketches[kind].add(values_T[mask_T])
            state.pages += int(tokens.pages_T[mask_T].long().sum())
            state.attended += int(tokens.attended_T[mask_T].long().sum())
            state.context += int(tokens.lengths_T[mask_T].long().sum())

    def merge(self, other: MismatchStream) -> None:
        """Take in all that ``other`` saw. Raises InputError naming a setting in which the two differ."""
        for name in ("bin_tokens", "num_bins", "quantile"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InputError(f"cannot merge streams with {name}={mine} and {name}={theirs}; use one value for both")
        for state, added in zip(self._bins, other._bins, strict=True):
            state.merge(added)

    def empty_like(self) -> MismatchStream:
        """A stream of the same settings that has seen nothing."""
        return MismatchStream(bin_tokens=self.bin_tokens, num_bins=self.num_bins, quantile=self.quantile)

    def sketch(self, index: int, kind: Kind = "lower") -> AcceptanceSketch:
        """A copy of one bin's sketch."""
        return self._bin(index).sketches[self._kind(kind)] + AcceptanceSketch()

    def tail(self, index: int, kind: Kind = "lower") -> float | None:
        """The bin's quantile; None when it is empty, or lacks exact acceptances for some of its tokens."""
        return self._bin(index).tail(self._kind(kind), self.quantile)

    def bin(self, index: int) -> BinStats:
        last = index == self.num_bins - 1
        return self._stats(self._bin(index), index * self.bin_tokens, None if last else (index + 1) * self.bin_tokens)

    def bins(self) -> list[BinStats]:
        """Every bin, the empty ones too."""
        return [self.bin(index) for index in range(self.num_bins)]

    def overall(self) -> BinStats:
        """All bins taken together."""
        merged = _Bin()
        for state in self._bins:
            merged.merge(state)
        return self._stats(merged, 0, None)

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state; ``from_state_dict`` of it is equal to this stream."""
        bins = [
            {
                "pages": b.pages,
                "attended": b.attended,
                "context": b.context,
                **{kind: b.sketches[kind].state_dict() for kind in KINDS},
            }
            for b in self._bins
        ]
        return {"bin_tokens": self.bin_tokens, "num_bins": self.num_bins, "quantile": self.quantile, "bins": bins}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> MismatchStream:
        """Raises InputError when a field is missing or out of range."""
        try:
            stream = cls(bin_tokens=state["bin_tokens"], num_bins=state["num_bins"], quantile=state["quantile"])
            if len(state["bins"]) != stream.num_bins:
                raise InputError(f"mismatch state holds {len(state['bins'])} bins but num_bins={stream.num_bins}")
            for target, saved in zip(stream._bins, state["bins"], strict=True):
                target.sketches = {kind: AcceptanceSketch.from_state_dict(saved[kind]) for kind in KINDS}
                target.pages, target.attended, target.context = saved["pages"], saved["attended"], saved["context"]
        except KeyError as error:
            raise InputError(f"mismatch state lacks {error}; it must come from state_dict()") from error
        return stream

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MismatchStream):
            return NotImplemented
        settings = (self.bin_tokens, self.num_bins, self.quantile)
        return settings == (other.bin_tokens, other.num_bins, other.quantile) and self._bins == other._bins

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"MismatchStream(bin_tokens={self.bin_tokens}, num_bins={self.num_bins}, "
            f"quantile={self.quantile}, total={self.total})"
        )

    def _stats(self, state: _Bin, lo: int, hi: int | None) -> BinStats:
        sketch = state.sketches["lower"]
        if not sketch.count:
            return BinStats(lo, hi, 0, None, None, None, None, None, None, None, None)
        return BinStats(
            lo=lo,
            hi=hi,
            tokens=sketch.count,
            mean=sketch.mean,
            tail_lower=state.tail("lower", self.quantile),
            tail_upper=state.tail("upper", self.quantile),
            tail_exact=state.tail("exact", self.quantile),
            tail_interval=sketch.tail_confidence(self.quantile),
            pages_mean=state.pages / sketch.count,
            kept_fraction=state.attended / state.context,
            fraction_above_0999=sketch.fraction_above_0999,
        )

    def _bin(self, index: int) -> _Bin:
        if not 0 <= index < self.num_bins:
            raise InputError(f"bin {index} does not exist; the stream has bins 0 to {self.num_bins - 1}")
        return self._bins[index]

    @staticmethod
    def _kind(kind: Kind) -> Kind:
        if kind not in KINDS:
            raise InputError(f"kind={kind!r} is unknown; give one of {', '.join(KINDS)}")
        return kind
