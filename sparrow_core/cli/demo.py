"""``sparrow demo``: a first look in a few minutes on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sparrow_core.cli.rollout import Quiet


def demo(
    output: Annotated[Path, typer.Option(help="Directory for traces, JSON and plots.")] = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """SmolLM2 on eight prompts, dense and under three page budgets: how far does sparse attention drift?"""
    from sparrow_core.cli.common import console, progress_display
    from sparrow_core.measure.demo import run_demo
    from sparrow_core.measure.measure import measurement_json
    from sparrow_core.measure.plots import plot_acceptance, plot_tail
    from sparrow_core.measure.table import comparison_table

    results = run_demo(output, progress_display(quiet))
    summaries = {name: measurement_json(result) for name, result in results.items()}
    (output / "demo.json").write_text(json.dumps(summaries, indent=1) + "\n")
    plot_acceptance(results, output / "acceptance.png")
    plot_tail(results, output / "tail.png")
    console.print(comparison_table(results))
    for name, summary in summaries.items():
        console.print(
            f"{name:>9}: attended to {summary['attended_tokens']:,} of {summary['dense_tokens']:,} context tokens "
            f"({summary['kept_fraction']:.0%}) in each sparse layer"
        )
    noise = results["dense"].noise
    console.print(
        f"noise floor (dense rollout against dense recompute): acceptance >= {noise.min:.6f}; "
        f"plots: {output / 'tail.png'}, {output / 'acceptance.png'}"
    )
