"""The numbers of one distillation step, under the names that docs/distill.md lists."""

from __future__ import annotations

from sparrow_core.mismatch import MismatchStream
from sparrow_core.mismatch.stream import Kind
from sparrow_trainers.distill.step import DistillMetrics


def update_metrics(steps: list[DistillMetrics]) -> dict[str, float]:
    """``distill/...``: of the first of a step's updates, whose adapter is the rollout's, and the last one's loss."""
    first, last = steps[0], steps[-1]
    metrics = {f"distill/{name}": value for name, value in first.means.items()}
    metrics |= {"distill/loss": first.loss, "distill/grad_norm": first.grad_norm, "distill/tokens": float(first.tokens)}
    if len(steps) > 1:
        metrics["distill/last_loss"] = last.loss
    return metrics


def stream_metrics(stream: MismatchStream, group: str, forward_kl: float | None = None) -> dict[str, float]:
    """``GROUP/...`` over all tokens, and ``GROUP_tail/LO`` of every bin with tokens.

    ``acceptance_mean`` is that of the exact acceptance where it is known, else of the lower bound; so are tails.
    """
    overall = stream.overall()
    values = {
        "acceptance_mean": _mean(stream),
        "tail_lower": overall.tail_lower,
        "tail_upper": overall.tail_upper,
        "tail_exact": overall.tail_exact,
        "forward_kl": forward_kl,
    }
    metrics = {f"{group}/{name}": value for name, value in values.items() if value is not None}
    bins = [each for each in stream.bins() if each.tokens]
    digits = len(str((stream.num_bins - 1) * stream.bin_tokens))
    for each in bins:
        tail = each.tail_lower if each.tail_exact is None else each.tail_exact
        if tail is not None:
            metrics[f"{group}_tail/{each.lo:0{digits}d}"] = tail
    return metrics


def _mean(stream: MismatchStream) -> float | None:
    kinds: tuple[Kind, ...] = ("exact", "lower")
    for kind in kinds:
        sketches = [stream.sketch(index, kind) for index in range(stream.num_bins)]
        counted = [sketch for sketch in sketches if sketch.count]
        count = sum(sketch.count for sketch in counted)
        if count and count == stream.total:
            return sum(sketch.mean * sketch.count for sketch in counted) / count
    return None
