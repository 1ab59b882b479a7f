"""A step record as flat scalars, for trackers that know nothing of length bins."""

from __future__ import annotations

from sparrow_core.train_log import BinRecord, StepRecord


def scalars(record: StepRecord) -> dict[str, float]:
    """The metrics, and ``bins_WHAT/LO`` of every length bin with tokens: tail, tail_upper, kept, budget and tokens.

    ``LO`` is the bin's shortest context in tokens, padded with zeros so that names sort by length. The tail is the
    exact one where it is known, else the lower bound's. A dense budget has no scalar.
    """
    result = {**record.metrics, "policy_version": float(record.policy_version)}
    digits = len(str(max((each.lo for each in record.bins), default=0)))
    for each in record.bins:
        if each.tokens:
            result |= {f"{name}/{each.lo:0{digits}d}": value for name, value in _of_bin(each).items()}
    return result


def _of_bin(each: BinRecord) -> dict[str, float]:
    values = {
        "tail": each.tail_lower if each.tail_exact is None else each.tail_exact,
        "tail_upper": each.tail_upper,
        "kept": each.kept_fraction,
        "budget": None if each.budget_pages == "dense" else each.budget_pages,
        "tokens": each.tokens,
    }
    return {f"bins_{name}": float(value) for name, value in values.items() if value is not None}
