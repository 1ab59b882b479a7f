"""Options that the ``sparrow bench`` commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Models = Annotated[list[str] | None, typer.Option("--model", help="Model, like random:qwen3-1.7b; may repeat.")]
Batches = Annotated[list[str] | None, typer.Option("--batch", help="Sequences per step; may repeat.")]
Lengths = Annotated[list[str] | None, typer.Option("--length", help="Context tokens; may repeat.")]
NoDense = Annotated[bool, typer.Option("--no-dense-layers", help="Every layer is sparse.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto is bfloat16 on CUDA and float32 on a CPU.")]
HardwareName = Annotated[str | None, typer.Option("--hardware", help="Whose bandwidth floors use; default the device.")]
Rounds = Annotated[int, typer.Option(help="Rounds in which the competitors take turns; the median counts.")]
Repeats = Annotated[int, typer.Option(help="Timed steps per round.")]
