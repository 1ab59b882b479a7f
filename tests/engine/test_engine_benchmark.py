"""The benchmark of the decode loop runs whole on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.engine_gpu import main
from sparrow_core.errors import InputError
from tests.engine.conftest import TINY_LLAMA


def arguments(tmp_path: Path, *more: str) -> list[str]:
    config = tmp_path / "tiny.json"
    config.write_text(json.dumps({**TINY_LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}))
    sizes = ["--batch", "2", "--length", "60", "--pages", "6", "--points", "2", "--rounds", "1", "--repeats", "1"]
    where = ["--model", f"random:{config}", "--json", str(tmp_path / "out.json"), "--device", "cpu"]
    return [*where, *sizes, *more, "attention.page_size=4"]


def test_it_measures_steps_the_loop_and_the_rollout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(arguments(tmp_path, "--prompt", "40"))
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["step"]["seconds"].keys() == {"dense", "sparse", "without_attention"}
    for name in ("dense", "sparse"):
        loop = row[name]["loop"]
        assert loop["steps"] == 19, "60 - 40 tokens, the first of which comes from the prompt"
        assert 0 < loop["idle"] < 1
        assert row[name]["seconds"] >= loop["step_seconds"]
        assert row[name]["over_integrated"] == row[name]["seconds"] / row["integrated"][name]
    assert "sparse: step" in capsys.readouterr().out


def test_a_prompt_as_long_as_the_rollout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--prompt=60 must be between 1 and length - 1 = 59"):
        main(arguments(tmp_path, "--prompt", "60"))
