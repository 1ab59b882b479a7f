"""The cache of converted models: atomic, checked, made again when broken; and GGUF files that cannot be read."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import pytest
import torch
from model_helpers import needs_smollm2

from sparrow_core.errors import CheckpointError, InputError
from sparrow_core.model import LanguageModel, load_model
from sparrow_core.model.cache import MANIFEST, cache_root, cached_directory, is_intact


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARROW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class _Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, directory: Path) -> None:
        self.calls += 1
        (directory / "weights").write_bytes(b"w" * 1000)
        (directory / "config").write_text("{}")


def test_made_once(cache: Path) -> None:
    make = _Maker()
    assert cached_directory("models/a", make) == cached_directory("models/a", make) == cache / "models" / "a"
    assert make.calls == 1


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "no-manifest", "bad-manifest"])
def test_made_again_when_broken(cache: Path, damage: str) -> None:
    make = _Maker()
    directory = cached_directory("models/a", make)
    if damage == "flip":
        (directory / "weights").write_bytes(b"w" * 999 + b"x")
    elif damage == "cut":
        (directory / "weights").write_bytes(b"w" * 999)
    elif damage == "remove":
        (directory / "config").unlink()
    elif damage == "no-manifest":
        (directory / MANIFEST).unlink()
    else:
        (directory / MANIFEST).write_text('{"files": ["weights"]}')
    assert cached_directory("models/a", make) == directory
    assert make.calls == 2
    assert is_intact(directory)
    assert [p.name for p in directory.parent.iterdir() if p.is_dir()] == ["a"]


def test_nothing_is_left_when_making_fails(cache: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "half").write_text("half")
        raise CheckpointError("no good")

    with pytest.raises(CheckpointError, match="no good"):
        cached_directory("models/a", fail)
    assert [p.name for p in (cache / "models").iterdir() if p.is_dir()] == []
    assert cached_directory("models/a", _Maker()).is_dir()


def _make_slowly(log: Path, directory: Path) -> None:
    with log.open("a") as file:
        file.write("made\n")
    time.sleep(0.3)
    (directory / "weights").write_bytes(b"w" * 1000)


def _use_cache(log: Path) -> None:
    directory = cached_directory("models/a", lambda work: _make_slowly(log, work))
    assert (directory / "weights").read_bytes() == b"w" * 1000


def test_processes_that_ask_at_once_share_one_conversion(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [multiprocessing.get_context("fork").Process(target=_use_cache, args=(log,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert log.read_text() == "made\n"


def test_a_cache_that_cannot_be_written_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("SPARROW_CACHE", str(root))
        with pytest.raises(InputError, match=r"cache directory .*file.* cannot be written.*set SPARROW_CACHE"):
            cached_directory("models/a", _Maker())


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARROW_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert cache_root() == Path("/one")
    monkeypatch.delenv("SPARROW_CACHE")
    assert cache_root() == Path("/two/sparrow")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/three")
    assert cache_root() == Path("/three/.cache/sparrow")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf file at all" * 10], ids=["empty", "cut", "text"])
def test_a_file_that_is_no_gguf(cache: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.gguf is not a whole GGUF file"):
        load_model(path)


def test_a_gguf_of_another_architecture(cache: Path, tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "model.gguf", "gemma3")
    writer.add_tensor("x", torch.zeros(4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"general\.architecture='gemma3'.*supported: llama, qwen3"):
        load_model(tmp_path / "model.gguf")


@needs_smollm2
def test_a_truncated_gguf(cache: Path, tmp_path: Path) -> None:
    from sparrow_core.model.checkpoint import _smollm2_file

    content = _smollm2_file().read_bytes()
    (tmp_path / "model.gguf").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="is not a whole GGUF file"):
        load_model(tmp_path / "model.gguf")


@needs_smollm2
def test_the_converted_model_is_whole_and_quick_to_check(smollm2: LanguageModel) -> None:
    directory = smollm2.directory
    assert directory is not None
    listed = json.loads((directory / MANIFEST).read_text())["files"]
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= listed.keys()
    assert "quantization_config" not in json.loads((directory / "config.json").read_text())
    seconds = []
    for _ in range(3):
        started = time.process_time()
        assert is_intact(directory)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 1.0
