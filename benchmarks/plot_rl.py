"""Curves and a Markdown table of training runs that differ in their policy.

usage: python benchmarks/plot_rl.py FIGURE.png LABEL=METRICS.jsonl[.gz] [LABEL=METRICS.jsonl[.gz] ...] [--tau 0.86]

Draws reward, share of the context kept and worst tail by step; prints one column per run. Dots are evaluations under
the run's own policy, rings dense ones. Bins of a step with fewer than ``--least-tokens`` tokens are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

LAST = 10
"""Steps at the end that stand for the trained model."""

Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    """Lines of ``metrics.jsonl``, packed or not. Raises ValueError when there are none."""
    stored = path.read_bytes()
    text = (gzip.decompress(stored) if path.suffix == ".gz" else stored).decode("utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    if not records:
        raise ValueError(f"{path} holds no steps; give the metrics.jsonl of a run that has finished one")
    return records


def evaluations(records: list[Record], kind: str) -> dict[int, float]:
    """Step to mean reward of the ``kind`` (dense or sparse) evaluations."""
    key = f"eval_{kind}/reward_mean"
    return {r["step"]: r["metrics"][key] for r in records if key in r["metrics"]}


def tails(records: list[Record], least_tokens: int) -> dict[str, dict[int, float]]:
    """Bin, as "LO to HI", to step to its tail of the exact acceptance."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        for each in record["bins"]:
            if each["tokens"] >= least_tokens:
                name = f"{each['lo']}+" if each["hi"] is None else f"{each['lo']} to {each['hi'] - 1}"
                found.setdefault(name, {})[record["step"]] = each["tail_exact"]
    return found


def kept(records: list[Record]) -> float:
    """Mean over the steps."""
    return fmean(r["metrics"]["mismatch/kept_fraction"] for r in records)


def rollout_share(records: list[Record]) -> float:
    rollout, step = (fmean(r["metrics"][f"time/{part}_s"] for r in records) for part in ("rollout", "step"))
    return rollout / step


def figure(runs: dict[str, list[Record]], tau: float, least_tokens: int, path: Path) -> None:
    canvas, (top, middle, bottom) = plt.subplots(3, 1, figsize=(8, 9), sharex=True, layout="constrained")
    for index, (label, records) in enumerate(runs.items()):
        color = f"C{index}"
        steps = [r["step"] for r in records]
        top.plot(steps, [r["metrics"]["reward/mean"] for r in records], color=color, alpha=0.5, linewidth=1)
        own, dense = evaluations(records, "sparse"), evaluations(records, "dense")
        top.plot(list(own), list(own.values()), "o-", color=color, label=label)
        top.plot(list(dense), list(dense.values()), "o", color=color, fillstyle="none", markersize=9)
        middle.plot(steps, [r["metrics"]["mismatch/kept_fraction"] for r in records], color=color, label=label)
        by_bin = tails(records, least_tokens).values()
        worst = {step: min(tail[step] for tail in by_bin if step in tail) for step in sorted(set().union(*by_bin))}
        bottom.plot(list(worst), list(worst.values()), color=color, label=label)
    top.set_ylabel("mean reward")
    middle.set_ylabel("share of the context kept")
    bottom.set_ylabel("worst bin's 5 % tail of the acceptance")
    bottom.axhline(tau, color="black", linestyle="--", linewidth=1, label=f"tau {tau:g}")
    bottom.set_xlabel("RL step")
    for axes in (top, middle, bottom):
        axes.set_ylim(0, 1.03)
        axes.grid(alpha=0.3)
    top.legend(loc="lower right")
    bottom.legend(loc="lower right")
    canvas.savefig(path, dpi=110)
    plt.close(canvas)


def table(runs: dict[str, list[Record]], least_tokens: int) -> str:
    def spread(records: list[Record], name: str) -> str:
        values = list(tails(records, least_tokens).get(name, {}).values())
        if len(values) < 2:
            return "-"
        tenths = quantiles(values, n=10, method="inclusive")
        return f"{tenths[4]:.2f} ({tenths[0]:.2f} to {tenths[8]:.2f})"

    def ends(kind: str) -> Callable[[list[Record]], str]:
        def both(records: list[Record]) -> str:
            values = list(evaluations(records, kind).values())
            return f"{values[0]:.3f} to {values[-1]:.3f}" if values else "-"

        return both

    bins = sorted(
        {name for r in runs.values() for name in tails(r, least_tokens)}, key=lambda n: int(n.split()[0].strip("+"))
    )
    rows: list[tuple[str, Callable[[list[Record]], str]]] = [
        ("evaluated under its own policy, first to last", ends("sparse")),
        ("evaluated dense, first to last", ends("dense")),
        (
            f"reward in training, first {LAST} steps to last {LAST}",
            lambda r: " to ".join(
                f"{fmean(x['metrics']['reward/mean'] for x in p):.3f}" for p in (r[:LAST], r[-LAST:])
            ),
        ),
        ("share of the context kept, mean", lambda r: f"{kept(r):.0%}"),
        (f"the same, first {LAST} steps to last {LAST}", lambda r: f"{kept(r[:LAST]):.0%} to {kept(r[-LAST:]):.0%}"),
        *((f"tail at {name} tokens, median (10 % to 90 % of steps)", lambda r, n=name: spread(r, n)) for name in bins),
        ("rollout, share of the steps' time", lambda r: f"{rollout_share(r):.0%}"),
    ]
    lines = ["| | " + " | ".join(runs) + " |", "|---" * (len(runs) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(value(records) for records in runs.values()) + " |" for name, value in rows]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", type=Path)
    parser.add_argument("runs", nargs="+", metavar="LABEL=METRICS.jsonl[.gz]")
    parser.add_argument("--tau", type=float, default=0.86)
    parser.add_argument("--least-tokens", type=int, default=100)
    options = parser.parse_args(arguments)
    runs = {}
    for given in options.runs:
        label, equals, path = given.rpartition("=")
        if not (equals and label):
            parser.error(f"{given!r} has no label; write LABEL=METRICS.jsonl")
        runs[label] = read(Path(path))
    figure(runs, options.tau, options.least_tokens, options.figure)
    print(table(runs, options.least_tokens))


if __name__ == "__main__":
    main(sys.argv[1:])
