"""The numbers of one RL step, under the names that docs/training-log.md lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sparrow_core.mismatch import MismatchStream
from sparrow_trainers.rl.collect import Timings
from sparrow_trainers.rl.sample import Sample
from sparrow_trainers.rl.update import UpdateResult


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Wall-clock seconds of one step on the slowest rank."""

    rollout: float
    recompute: float
    reward: float
    update: float
    total: float


def response_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Rewards, lengths and how responses ended, over all samples that were drawn."""
    count = len(samples)
    rewards = [sample.reward for sample in samples]
    lengths = [len(sample.token_ids) for sample in samples]
    mean = sum(rewards) / count
    metrics = {
        "reward/mean": mean,
        "reward/std": (sum((r - mean) ** 2 for r in rewards) / count) ** 0.5,
        "reward/min": min(rewards),
        "reward/max": max(rewards),
        "reward/failed": float(sum(sample.reward_error is not None for sample in samples)),
        "response/length_mean": sum(lengths) / count,
        "response/length_max": float(max(lengths)),
        "response/clipped_share": sum(sample.finish_reason != "stop" for sample in samples) / count,
    }
    for kind, number in sorted(Counter(s.reward_error for s in samples if s.reward_error is not None).items()):
        metrics[f"reward/failed_{kind}"] = float(number)
    for name in sorted({name for sample in samples for name in sample.reward_parts}):
        values = [sample.reward_parts[name] for sample in samples if name in sample.reward_parts]
        metrics[f"reward_part/{name}"] = sum(values) / len(values)
    return metrics


def drift_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Largest |old - rollout| of a drawn token; under dense attention, what kernels alone account for."""
    return {
        "mismatch/max_abs_log_ratio": max(
            float((sample.old_logp_T - sample.rollout_logp_T).abs().max()) for sample in samples
        )
    }


def mismatch_metrics(stream: MismatchStream) -> dict[str, float]:
    """The acceptance over all bins, and the worst bin's tail."""
    overall = stream.overall()
    metrics: dict[str, float] = {}
    if overall.mean is not None and overall.kept_fraction is not None:
        metrics["mismatch/acceptance_mean"] = overall.mean
        metrics["mismatch/kept_fraction"] = overall.kept_fraction
    if overall.tail_lower is not None:
        metrics["mismatch/tail_lower"] = overall.tail_lower
    if overall.tail_upper is not None:
        metrics["mismatch/tail_upper"] = overall.tail_upper
    if overall.tail_exact is not None:
        metrics["mismatch/tail_exact"] = overall.tail_exact
    if overall.fraction_above_0999 is not None:
        metrics["mismatch/fraction_above_0999"] = overall.fraction_above_0999
    return metrics


def time_metrics(times: StepTimes, timings: Sequence[Timings]) -> dict[str, float]:
    generated = sum(each.generated_tokens for each in timings)
    shares = {"rollout": times.rollout, "recompute": times.recompute, "reward": times.reward, "update": times.update}
    metrics = {f"time/{name}_s": value for name, value in shares.items()}
    metrics |= {f"time/{name}_share": value / times.total for name, value in shares.items()}
    metrics["time/step_s"] = times.total
    metrics["rollout/generated_tokens"] = float(generated)
    metrics["rollout/tokens_per_second"] = generated / max(times.rollout, 1e-9)
    metrics["rollout/preemptions"] = float(sum(each.preemptions for each in timings))
    return metrics


def update_metrics(result: UpdateResult, learning_rate: float) -> dict[str, float]:
    metrics = {
        "update/loss": sum(result.losses) / len(result.losses),
        "update/grad_norm": sum(result.grad_norms) / len(result.grad_norms),
        "update/grad_norm_max": max(result.grad_norms),
        "update/first_drift": result.first_drift,
        "update/optimizer_steps": float(len(result.grad_norms)),
        "update/learning_rate": learning_rate,
    }
    return metrics | result.sums.means()
