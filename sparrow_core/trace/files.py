"""The trace format, version 1.

``traces.safetensors``: for each array its values of all traces, flattened and concatenated, and ``NAME.offsets``
(int64 ``[traces + 1]``). An array that no trace has is left out; one that a trace lacks is empty there.
``traces.json``: format version, checksum of the tensors' file, meta, and each trace's scalars.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sparrow_core.errors import InputError
from sparrow_core.trace.record import DenseScores, SampleKey, Trace

FORMAT_VERSION = 1
TENSORS_NAME = "traces.safetensors"
JSON_NAME = "traces.json"

_SCALARS = ("finish_reason", "temperature", "top_p", "top_k", "policy_version")
_KEY = ("seed", "step", "prompt", "sample")

_ARRAYS: dict[str, Callable[[Trace], torch.Tensor | None]] = {
    "prompt_ids": lambda t: t.prompt_ids,
    "token_ids": lambda t: t.token_ids,
    "logprobs": lambda t: t.logprobs,
    "topk_ids": lambda t: t.topk_ids,
    "topk_logprobs": lambda t: t.topk_logprobs,
    "pages": lambda t: t.pages,
    "hidden": lambda t: t.hidden,
    "dense.logprobs": lambda t: None if t.dense is None else t.dense.logprobs,
    "dense.acceptance_lower": lambda t: None if t.dense is None else t.dense.acceptance_lower,
    "dense.acceptance_upper": lambda t: None if t.dense is None else t.dense.acceptance_upper,
    "dense.acceptance_exact": lambda t: None if t.dense is None else t.dense.acceptance_exact,
}


class TraceFileError(InputError):
    """A trace directory is missing, damaged, cannot be written, or is of another format version."""


def write_traces(directory: Path, traces: Sequence[Trace], meta: dict[str, Any]) -> None:
    tensors = _packed(traces)
    try:
        json.dumps(meta)
    except TypeError as error:
        raise TraceFileError(f"meta.config cannot be written as JSON ({error}); give JSON values only") from error
    try:
        directory.mkdir(parents=True, exist_ok=True)
        checksum = _replace(directory / TENSORS_NAME, lambda path: save_file(tensors, path))
        document = {
            "format_version": FORMAT_VERSION,
            "sha256": checksum,
            "meta": meta,
            "traces": [_scalars(trace) for trace in traces],
        }
        text = json.dumps(document, indent=1)
        _replace(directory / JSON_NAME, lambda path: path.write_text(text, encoding="utf-8"))
    except (OSError, SafetensorError) as error:
        raise TraceFileError(f"cannot write traces to {directory}: {error}") from error


def read_traces(directory: Path) -> tuple[list[Trace], dict[str, Any]]:
    document = _read_json(directory / JSON_NAME)
    path = directory / TENSORS_NAME
    try:
        checksum = _sha256(path)
    except OSError as error:
        raise TraceFileError(f"cannot read {path}: {error.strerror or error}") from error
    if checksum != document["sha256"]:
        raise TraceFileError(
            f"{path} is damaged or belongs to another {JSON_NAME}: its checksum is {checksum[:12]}..., "
            f"not {document['sha256'][:12]}...; record the traces again"
        )
    arrays = _read_arrays(path, len(document["traces"]))
    return [_trace(row, scalars, arrays, path) for row, scalars in enumerate(document["traces"])], document["meta"]


def _scalars(trace: Trace) -> dict[str, Any]:
    widths = {name: None if (a := get(trace)) is None else list(a.shape[1:]) for name, get in _ARRAYS.items()}
    return {
        "key": {name: getattr(trace.key, name) for name in _KEY},
        **{name: getattr(trace, name) for name in _SCALARS},
        "tokens": len(trace.token_ids),
        "arrays": {name: width for name, width in widths.items() if width is not None},
    }


def _packed(traces: Sequence[Trace]) -> dict[str, torch.Tensor]:
    packed: dict[str, torch.Tensor] = {}
    for name, get in _ARRAYS.items():
        flat = [None if (a := get(trace)) is None else a.detach().flatten() for trace in traces]
        present = [a for a in flat if a is not None]
        if not present:
            continue
        dtypes = {a.dtype for a in present}
        if len(dtypes) > 1:
            listed = ", ".join(sorted(str(d) for d in dtypes))
            raise TraceFileError(f"trace.{name} has dtypes {listed}; give every trace of a set the same one")
        sizes = [0, *(0 if a is None else len(a) for a in flat)]
        packed[name] = torch.cat(present)
        packed[f"{name}.offsets"] = torch.tensor(sizes, dtype=torch.int64).cumsum(0)
    return packed


def _replace(path: Path, write: Callable[[Path], object]) -> str:
    """Write beside ``path``, flush to disk and rename over it; returns the file's checksum."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        os.close(handle)
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        checksum = _sha256(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return checksum


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceFileError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise TraceFileError(f"{path} is not whole JSON ({error}); record the traces again") from error
    if not isinstance(document, dict) or "format_version" not in document:
        raise TraceFileError(f"{path} lacks format_version; it is no trace file")
    if document["format_version"] != FORMAT_VERSION:
        raise TraceFileError(
            f"{path} has format_version={document['format_version']}; this version of sparrow reads {FORMAT_VERSION}"
        )
    for name in ("sha256", "meta", "traces"):
        if name not in document:
            raise TraceFileError(f"{path} lacks the field {name}; record the traces again")
    return document


def _read_arrays(path: Path, num_traces: int) -> dict[str, tuple[torch.Tensor, list[int]]]:
    arrays: dict[str, tuple[torch.Tensor, list[int]]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in _ARRAYS.keys() & set(file.keys()):
                arrays[name] = file.get_tensor(name), file.get_tensor(f"{name}.offsets").tolist()
    except SafetensorError as error:
        raise TraceFileError(f"{path} cannot be read ({error}); record the traces again") from error
    for name, (_, offsets) in arrays.items():
        if len(offsets) != num_traces + 1:
            raise TraceFileError(f"{path} holds {len(offsets) - 1} traces of {name}, {JSON_NAME} lists {num_traces}")
    return arrays


def _trace(row: int, scalars: dict[str, Any], arrays: dict[str, tuple[torch.Tensor, list[int]]], path: Path) -> Trace:
    def array(name: str) -> torch.Tensor | None:
        if name not in scalars["arrays"]:
            return None
        if name not in arrays:
            raise TraceFileError(f"{path} lacks the array {name} of trace {row}; record the traces again")
        values, offsets = arrays[name]
        size, tail = offsets[row + 1] - offsets[row], scalars["arrays"][name]
        shape = [size if name == "prompt_ids" else scalars["tokens"], *tail]
        if math.prod(shape) != size:
            raise TraceFileError(f"{path} holds {size} values of {name} of trace {row}, {JSON_NAME} lists {shape}")
        return values[offsets[row] : offsets[row + 1]].view(shape)

    def needed(name: str) -> torch.Tensor:
        values = array(name)
        if values is None:
            raise TraceFileError(f"trace {row} of {path.parent / JSON_NAME} lacks {name}; record the traces again")
        return values

    try:
        dense = None
        if "dense.logprobs" in scalars["arrays"]:
            dense = DenseScores(
                logprobs=needed("dense.logprobs"),
                acceptance_lower=needed("dense.acceptance_lower"),
                acceptance_upper=needed("dense.acceptance_upper"),
                acceptance_exact=array("dense.acceptance_exact"),
            )
        return Trace(
            key=SampleKey(**{name: scalars["key"][name] for name in _KEY}),
            prompt_ids=needed("prompt_ids"),
            token_ids=needed("token_ids"),
            logprobs=needed("logprobs"),
            topk_ids=needed("topk_ids"),
            topk_logprobs=needed("topk_logprobs"),
            pages=needed("pages"),
            hidden=array("hidden"),
            dense=dense,
            **{name: scalars[name] for name in _SCALARS},
        )
    except KeyError as error:
        raise TraceFileError(f"trace {row} of {path.parent / JSON_NAME} lacks the field {error}") from error
