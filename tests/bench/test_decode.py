from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparrow_core.bench.decode import DecodeCase, cases_of
from sparrow_core.cli import main
from sparrow_core.errors import InputError

SIZES = ["--rounds", "2", "--repeats", "1", "--device", "cpu", "attention.page_size=4"]


def test_options_repeat_as_a_cross_product_and_cases_stand_alone() -> None:
    crossed = cases_of(["a", "b"], [1, 2], [64], [8], [])
    assert crossed == [DecodeCase(m, b, 64, 8) for m in "ab" for b in (1, 2)]
    assert cases_of([], [], [], [], ["random:x:4:64:8"]) == [DecodeCase("random:x", 4, 64, 8)]
    with pytest.raises(InputError, match=r"leave out --batch"):
        cases_of([], [1], [], [], ["random:x:4:64:8"])
    with pytest.raises(InputError, match=r"--pages is missing"):
        cases_of(["a"], [1], [64], [], [])
    with pytest.raises(InputError, match=r"--case='random:x:4:64' must be MODEL:BATCH:LENGTH:PAGES"):
        cases_of([], [], [], [], ["random:x:4:64"])


def test_rows_hold_raw_rounds_times_floors_and_the_environment(tiny_source: str, tmp_path: Path) -> None:
    out = tmp_path / "decode.json"
    options = f"bench decode --model {tiny_source} --batch 2 --batch 3 --length 64 --pages 8 --hardware h200"
    assert main([*options.split(), *SIZES, "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["bench"] == "decode"
    assert result["environment"]["device"] == "cpu"
    assert result["environment"]["torch"] == torch.__version__
    assert result["floor_bandwidth"] == 4.3e12
    sizes = [(row["case"]["batch"], row["case"]["length"]) for row in result["rows"]]
    assert sizes == [(2, 64), (3, 64)]
    for row in result["rows"]:
        assert row["dense_layers"] == [0, 1]
        assert set(row["rounds"]) == {"dense", "sparse", "without_attention"}
        for name, rounds in row["rounds"].items():
            assert len(rounds) == 2
            assert row["seconds"][name] == pytest.approx(sum(rounds) / 2)
            assert row["floors"][name] == pytest.approx(row["bytes"][name] / 4.3e12)
            assert row["ratio"][name] == pytest.approx(row["seconds"][name] / row["floors"][name])
        assert row["speedup"] == pytest.approx(row["seconds"]["dense"] / row["seconds"]["sparse"])


def test_without_dense_layers_the_sparse_floor_falls(tiny_source: str, tmp_path: Path) -> None:
    floors = {}
    for flag in ("", "--no-dense-layers"):
        out = tmp_path / f"decode{flag}.json"
        arguments = [*f"bench decode --case {tiny_source}:2:64:8 {flag}".split(), *SIZES, "--json", str(out)]
        assert main(arguments) == 0
        floors[flag] = json.loads(out.read_text())["rows"][0]["floors"]
    assert floors["--no-dense-layers"]["sparse"] < floors[""]["sparse"]
    assert floors["--no-dense-layers"]["dense"] == floors[""]["dense"]


@pytest.mark.parametrize(
    ("case", "more", "message"),
    [
        ("0:64:8", [], "batch=0 must be at least 1"),
        ("2:64:16", [], "pages=16 is all of the 16 pages of length=64"),
        ("2:64:3", [], "below sink + recent + 1 = 4"),
        ("2:161:8", [], "length=161 is outside tiny's context; give 1 to 160 tokens"),
        ("2:64:8", ["policy=dense"], "bench reads the sections attention and rollout, not policy"),
        ("2:64:8", ["--hardware", "abacus"], "hardware='abacus' is unknown"),
        ("2:64:8", ["attention.backend=flashinfer"], "attention.backend=flashinfer cannot serve"),
        ("2:64:8", ["--dtype", "int4"], "dtype='int4' is not supported"),
    ],
)
def test_bad_input(
    tiny_source: str, case: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "decode", "--case", f"{tiny_source}:{case}", *SIZES, *more]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_batch_beyond_the_memory_says_which_fits(
    tiny_source: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrow_core.bench.steps.free_bytes", lambda device: 6 << 20)
    assert main(["bench", "decode", "--case", f"{tiny_source}:4000:160:8", *SIZES]) == 2
    error = capsys.readouterr().err
    assert "batch=4000 at length=160 needs" in error
    fits = int(error.split("a batch of ")[1].split()[0])
    assert main(["bench", "decode", "--case", f"{tiny_source}:{fits}:160:8", *SIZES]) == 0
    assert main(["bench", "decode", "--case", f"{tiny_source}:{fits + 1}:160:8", *SIZES]) == 2
