"""Trace files: a bit-exact round trip, and a clear error for every kind of damage."""

import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from sparrow_core.errors import InputError
from sparrow_core.testing.mismatch import trace_sets
from sparrow_core.trace import SampleKey, Trace, TraceFileError, TraceMeta, TraceSet


def small_set(num_tokens: int = 3, hidden: torch.Tensor | None = None) -> TraceSet:
    trace = Trace(
        key=SampleKey(0, 0, 0, 0),
        prompt_ids=torch.arange(4, dtype=torch.int32),
        token_ids=torch.arange(num_tokens, dtype=torch.int32),
        logprobs=torch.full((num_tokens,), -0.5),
        topk_ids=torch.arange(2, dtype=torch.int32).repeat(num_tokens, 1),
        topk_logprobs=torch.full((num_tokens, 2), -1.0),
        pages=torch.ones(num_tokens, dtype=torch.int32),
        finish_reason="length",
        temperature=0.6,
        top_p=0.95,
        top_k=20,
        policy_version=7,
        hidden=hidden,
    )
    return TraceSet([trace], TraceMeta("model", "reference", "mean_landmark", "static", 4, 1, 2, (0, 1)))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    small_set().save(tmp_path / "run")
    return tmp_path / "run"


def edit_json(directory: Path, change) -> None:
    path = directory / "traces.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@settings(max_examples=60)
@given(trace_sets())
def test_round_trip_is_bit_exact(traces):
    with tempfile.TemporaryDirectory() as directory:
        traces.save(directory)
        loaded = TraceSet.load(directory)
        assert loaded.equals(traces)
        first = (Path(directory) / "traces.safetensors").read_bytes()
        loaded.save(directory)
        assert (Path(directory) / "traces.safetensors").read_bytes() == first
        assert TraceSet.load(directory).equals(traces)


@settings(max_examples=30)
@given(trace_sets(scored=True))
def test_the_mismatch_survives_the_round_trip(traces):
    with tempfile.TemporaryDirectory() as directory:
        traces.save(directory)
        assert TraceSet.load(directory).mismatch(bin_tokens=4) == traces.mismatch(bin_tokens=4)


def test_only_the_two_files_are_left(saved):
    assert sorted(os.listdir(saved)) == ["traces.json", "traces.safetensors"]


def test_a_failed_save_keeps_the_old_files(saved, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sparrow_core.trace.files.save_file", fail)
    with pytest.raises(TraceFileError, match="No space left"):
        small_set(num_tokens=9).save(saved)
    assert TraceSet.load(saved).equals(small_set())
    assert sorted(os.listdir(saved)) == ["traces.json", "traces.safetensors"]


def test_changing_a_loaded_tensor_leaves_the_file_alone(saved):
    loaded = TraceSet.load(saved)
    loaded.traces[0].logprobs[0] = -9.0
    assert TraceSet.load(saved).equals(small_set())


def test_saving_over_the_files_leaves_loaded_traces_alone(saved):
    loaded = TraceSet.load(saved)
    small_set(num_tokens=50).save(saved)
    assert loaded.equals(small_set())


@pytest.mark.parametrize("name", ["traces.json", "traces.safetensors"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(TraceFileError, match=f"{name}.*No such file"):
        TraceSet.load(saved)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(TraceFileError, match="nowhere"):
        TraceSet.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "message"), [("traces.json", "not whole JSON"), ("traces.safetensors", "damaged.*checksum")]
)
def test_a_truncated_file_is_refused(saved, name, message):
    path = saved / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceFileError, match=message):
        TraceSet.load(saved)


def test_a_flipped_bit_is_refused(saved):
    path = saved / "traces.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(TraceFileError, match="checksum"):
        TraceSet.load(saved)


def test_another_format_version_is_refused(saved):
    edit_json(saved, lambda d: d.update(format_version=99))
    with pytest.raises(TraceFileError, match="format_version=99"):
        TraceSet.load(saved)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda d: d.pop("format_version"), "format_version"),
        (lambda d: d.pop("sha256"), "sha256"),
        (lambda d: d.pop("meta"), "meta"),
        (lambda d: d.pop("traces"), "traces"),
        (lambda d: d["meta"].pop("backend"), "backend"),
        (lambda d: d["meta"].update(novel=1), "novel"),
        (lambda d: d["traces"][0].pop("temperature"), "temperature"),
        (lambda d: d["traces"][0]["key"].pop("seed"), "seed"),
        (lambda d: d["traces"][0]["arrays"].pop("pages"), "pages"),
        (lambda d: d["traces"][0]["arrays"].update(hidden=[3]), "hidden"),
        (lambda d: d["traces"][0].update(tokens=4), "token_ids"),
        (lambda d: d["traces"].append(d["traces"][0]), "1 traces"),
    ],
)
def test_a_field_that_is_missing_or_off_is_named(saved, change, name):
    edit_json(saved, change)
    with pytest.raises(InputError, match=name):
        TraceSet.load(saved)


def test_hidden_states_of_mixed_dtypes_are_refused(tmp_path):
    both = small_set(hidden=torch.zeros(3, 2)).traces + small_set(hidden=torch.zeros(3, 2).bfloat16()).traces
    with pytest.raises(TraceFileError, match="hidden has dtypes"):
        TraceSet(both, small_set().meta).save(tmp_path)


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceFileError, match="cannot write traces"):
        small_set().save(tmp_path / "file")


def test_config_that_is_not_json_is_refused(tmp_path):
    traces = small_set()
    traces.meta.config["path"] = tmp_path
    with pytest.raises(TraceFileError, match="JSON"):
        traces.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
