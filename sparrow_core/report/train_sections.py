"""What the report says about training runs; nothing when there is none among the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sparrow_core.report import train_figures
from sparrow_core.report.data import Run
from sparrow_core.report.sections import Plot, PlotSection, apart_words
from sparrow_core.report.train_figures import TrainedRun, trained_runs

_PANELS = 8
_GROUPS = {
    "reward": "Rewards",
    "reward_part": "Parts of the rewards",
    "response": "Responses",
    "mismatch": "Mismatch of rollout and dense policy",
    "objective": "Objective",
    "update": "Updates",
    "rollout": "Rollout",
    "eval_dense": "Evaluation with dense attention",
    "eval_sparse": "Evaluation under the policy's budgets",
}
"""Titles of well-known groups, in the order in which they are drawn; others follow under their own names."""


def train_sections(runs: Sequence[Run]) -> list[PlotSection]:
    trained = trained_runs(runs)
    return [_curves(trained), _groups(trained), _times(trained)] if trained else []


def _curves(runs: Sequence[TrainedRun]) -> PlotSection:
    plot = Plot(
        "training",
        "Reward, length, tail and context kept by step",
        " ".join(_headline_words(run) for run in runs) + _thinned_words(runs),
        lambda: train_figures.headline(runs),
    )
    intro = (
        "The tail of every length bin should stay at tau or above; a collapse shows as rewards that fall and "
        "responses that shrink."
    )
    return PlotSection("Training", intro, (plot, *_tail_maps(runs)))


def _tail_maps(runs: Sequence[TrainedRun]) -> Iterator[Plot]:
    for number, run in enumerate(runs):
        if run.loop is None or not any(o.bins for o in run.loop.observations):
            continue
        tails = [each.tail for o in run.loop.observations for each in o.bins if each.tail is not None]
        below = sum(tail < run.tau for tail in tails)
        yield Plot(
            f"tails-{number}",
            f"{run.name}: tail by step and length",
            f"Blue where the tail of a length bin is at tau = {run.tau:g} or above, red where it is below "
            f"({below} of {len(tails)}); empty where a bin had no tokens.{apart_words(run.loop)}",
            lambda loop=run.loop: train_figures.tail_map(loop),  # type: ignore[misc]
        )


def _headline_words(run: TrainedRun) -> str:
    training = run.training
    parts = ["1 step" if len(training.steps) == 1 else f"{len(training.steps)} steps"]
    for name, words in (("reward/mean", "reward"), ("response/length_mean", "response length")):
        values = training.metrics.get(name, np.array([]))
        known = values[np.isfinite(values)]
        if len(known):
            parts.append(f"{words} from {known[0]:.4g} to {known[-1]:.4g}")
    tails = training.worst_tail[np.isfinite(training.worst_tail)]
    if len(tails):
        parts.append(f"lowest tail {tails.min():.3f}, below tau = {run.tau:g} at {int((tails < run.tau).sum())} steps")
    kept = training.kept[np.isfinite(training.kept)]
    if len(kept):
        parts.append(f"context kept {kept.mean():.1%} on average")
    return f"{run.name}: {', '.join(parts)}."


def _thinned_words(runs: Sequence[TrainedRun]) -> str:
    if all(len(run.training.steps) <= train_figures.MOST_POINTS for run in runs):
        return ""
    return f" Curves of more than {train_figures.MOST_POINTS} steps are means over neighbouring steps."


def _groups(runs: Sequence[TrainedRun]) -> PlotSection:
    intro = "Every metric that was logged, by group; times have a section of their own."
    missing = "The runs log no metrics beside times; sparrow train does."
    return PlotSection("Training metrics", intro, tuple(_group_plots(runs)), missing)


def _group_plots(runs: Sequence[TrainedRun]) -> Iterator[Plot]:
    names = dict.fromkeys(
        name for run in runs for name, values in run.training.metrics.items() if np.isfinite(values).any()
    )
    groups: dict[str, list[str]] = {group: [] for group in _GROUPS}
    for name in names:
        if not name.startswith("time/"):
            groups.setdefault(name.partition("/")[0] if "/" in name else "other", []).append(name)
    for group, own in groups.items():
        title = _GROUPS.get(group, group.replace("_", " ").capitalize())
        for number, start in enumerate(range(0, len(own), _PANELS)):
            part = own[start : start + _PANELS]
            slug = "".join(c if c.isascii() and c.isalnum() else "-" for c in group)
            yield Plot(
                f"metrics-{list(groups).index(group)}-{slug}-{number}",
                f"{title} by step" + (f", part {number + 1}" if len(own) > _PANELS else ""),
                f"Metrics: {', '.join(part)}." + _thinned_words(runs),
                lambda part=part: train_figures.group_panels(runs, part),  # type: ignore[misc]
            )


def _times(runs: Sequence[TrainedRun]) -> PlotSection:
    plots = []
    for number, run in enumerate(runs):
        parts = {name: values.sum() for name, values in train_figures.time_parts(run.training).items()}
        total = sum(parts.values())
        if not total:
            continue
        shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts.items())
        plots.append(
            Plot(
                f"time-{number}",
                f"{run.name}: where the time of a step goes",
                f"Of {total:,.0f} seconds in {len(run.training.steps)} steps: {shares}.",
                lambda run=run: train_figures.time_split(run),  # type: ignore[misc]
            )
        )
    intro = "Seconds of each step by what they went into; the rollout's share is what sparse attention can save."
    missing = "The runs log no times; sparrow train does."
    return PlotSection("Training time", intro, tuple(plots), missing)
