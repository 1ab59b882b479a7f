"""``sparrow convert``: any model that can be loaded, as a Hugging Face safetensors directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[str, typer.Argument(help="Safetensors directory, GGUF file, hub id, or the alias smollm2.")],
    output: Annotated[Path, typer.Argument(help="New directory for the checkpoint.", metavar="OUTPUT_DIR")],
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Load a model and write it as a Hugging Face directory."""
    from sparrow_core.cli.common import console
    from sparrow_core.config import ModelConfig, validate
    from sparrow_core.errors import InputError
    from sparrow_core.model import export_model, load_model, resolve_device, resolve_dtype

    config = validate(ModelConfig, {"source": source, "dtype": dtype, "device": "cpu"})
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"OUTPUT_DIR={str(output)!r} already holds files; give a new or empty directory")
    model = load_model(config.source, dtype=resolve_dtype(config.dtype), device=resolve_device(config.device))
    export_model(model, output)
    console.print(f"{model.name} written to {output}", markup=False)
