"""Plots and a Markdown table of ``sparrow bench`` results.

usage: python benchmarks/plot_performance.py OUTDIR RESULT.json [RESULT.json ...]

Writes ``decode.png``, ``rollout.png`` and ``kernels.png`` (measured time beside the byte floor), one for each kind of
result given, and ``performance.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

UNITS = {"decode": ("ms", 1e3), "rollout": ("ms per token of a row", 1e3), "kernels": ("us", 1e6)}


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured time beside its floor, in seconds."""

    case: str
    name: str
    seconds: float
    floor: float


def bars_of(result: dict[str, Any]) -> list[Bar]:
    """The bars of one result; kinds without a floor (plans, end-to-end rollouts) give none."""
    rows = result["rows"]
    if result["bench"] == "decode":
        return [
            Bar(_label(row["case"], row["case"]["pages"]), name, row["seconds"][name], row["floors"][name])
            for row in rows
            for name in row["seconds"]
        ]
    if result["bench"] == "rollout":
        return [
            Bar(
                f"{row['kind']} {_label(row['case'])}",
                name,
                *(row[k][name] / _steps(row) for k in ("seconds", "floors")),
            )
            for row in rows
            if row["kind"] != "end_to_end"
            for name in row["seconds"]
        ]
    if result["bench"] == "kernels":
        return [
            Bar(row["name"], name, seconds, row["floor"]) for row in rows for name, seconds in row["seconds"].items()
        ]
    return []


def _steps(row: dict[str, Any]) -> float:
    return float(row["tokens"] / row["case"]["batch"])


def _label(case: dict[str, Any], *more: Any) -> str:
    model = case["model"].removeprefix("random:")
    return " ".join(map(str, [Path(model).stem if "/" in model else model, f"B{case['batch']}", case["length"], *more]))


def plot(kind: str, bars: list[Bar], device: str, path: Path) -> None:
    """Horizontal bars of measured time with the floor drawn inside, and the ratio written beside."""
    unit, scale = UNITS[kind]
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.34 * len(bars)), layout="constrained")
    names = sorted({bar.name for bar in bars})
    colors = {name: f"C{index}" for index, name in enumerate(names)}
    at = range(len(bars))
    axes.barh(at, [bar.seconds * scale for bar in bars], color=[colors[bar.name] for bar in bars], alpha=0.45)
    axes.barh(at, [bar.floor * scale for bar in bars], color=[colors[bar.name] for bar in bars], height=0.45)
    for index, bar in enumerate(bars):
        axes.text(bar.seconds * scale, index, f" {bar.seconds / bar.floor:.2f}x", va="center", fontsize=8)
    axes.set_yticks(at, [f"{bar.case}, {bar.name.replace('_', ' ')}" for bar in bars], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(f"{unit}; dark: bytes that must be read at copy bandwidth")
    axes.set_title(f"sparrow bench {kind}, {device}", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def markdown(kind: str, bars: list[Bar], device: str) -> str:
    unit, scale = UNITS[kind]
    lines = [f"{kind}, {device}", "", f"| case | step | {unit} | floor | times the floor |", "|---|---|---|---|---|"]
    for bar in bars:
        times = f"{bar.seconds * scale:.3f} | {bar.floor * scale:.3f} | {bar.seconds / bar.floor:.2f}"
        lines.append(f"| {bar.case} | {bar.name.replace('_', ' ')} | {times} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    grouped: dict[tuple[str, str], list[Bar]] = {}
    for path in options.results:
        result = json.loads(path.read_text(encoding="utf-8"))
        if "bench" not in result:
            parser.error(f"{path} is not a result of sparrow bench: it has no key 'bench'")
        bars = bars_of(result)
        if bars:
            grouped.setdefault((result["bench"], result["environment"]["device_name"]), []).extend(bars)
    if not grouped:
        parser.error("no result has times beside floors; give results of sparrow bench decode, rollout or kernels")
    options.outdir.mkdir(parents=True, exist_ok=True)
    kinds = [kind for kind, _ in grouped]
    for (kind, device), bars in grouped.items():
        suffix = f"-{device.replace(' ', '-').lower()}" if kinds.count(kind) > 1 else ""
        plot(kind, bars, device, options.outdir / f"{kind}{suffix}.png")
    text = "\n".join(markdown(kind, bars, device) for (kind, device), bars in grouped.items())
    (options.outdir / "performance.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
