from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparrow_core.bench.kernel_cases import DENSE, SELECT, SELECTED, KernelCase, chosen, parsed
from sparrow_core.cli import main
from sparrow_core.errors import InputError

SIZES = [
    "--rounds",
    "2",
    "--device",
    "cpu",
    "--hardware",
    "h200",
    "--kv-heads",
    "2",
    "--head-dim",
    "16",
    "attention.page_size=4",
]


def test_cases_by_text_and_by_name() -> None:
    assert parsed("dense:2:64:4") == KernelCase("dense", 2, 64, 4)
    assert parsed("select:2:64:4:8:spread") == KernelCase("select", 2, 64, 4, 8, spread=True)
    names = [case.name for case in DENSE + SELECTED + SELECT]
    assert len(set(names)) == len(names)
    assert chosen([], "select ") == SELECT
    with pytest.raises(InputError, match="--only='prefill' matches no case; they are dense B16 16K g2"):
        chosen([], "prefill")
    with pytest.raises(InputError, match="leave it or --case out"):
        chosen(["dense:2:64:4"], "dense")


@pytest.mark.parametrize(
    "text", ["dense", "dense:2:64", "dense:2:64:4:8", "selected:2:64:4", "flash:2:64:4", "dense:0:64:4"]
)
def test_a_case_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"--case='{text}' must be dense:BATCH:LENGTH:GROUP"):
        parsed(text)


def test_rows_count_the_bytes_that_each_kernel_must_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kernels.json"
    cases = "--case dense:2:62:3 --case selected:2:64:1:5 --case select:2:64:2:5 --case dense:2:64:2:spread"
    assert main(["bench", "kernels", *cases.split(), *SIZES, "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    vector = 2 * 16 * 4
    tokens = {"dense": 2 * 2 * 62, "selected": 2 * 2 * 5 * 4, "select": 2 * 16}
    dense, selected, select, spread = result["rows"]
    for row in (dense, selected, select):
        assert row["bytes"] == tokens[row["case"]["kind"]] * vector
        assert row["floor"] == pytest.approx(row["bytes"] / 4.3e12)
        assert len(row["rounds"]["ours"]) == 2
        assert row["ratio"]["ours"] == pytest.approx(row["seconds"]["ours"] / row["floor"])
    assert spread["bytes"] == 2 * (32 + 64) * vector
    assert result["flashinfer_absent"]
    assert "FlashInfer was not timed: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("case", "more", "message"),
    [
        ("selected:2:64:1:16", [], "pages=16 of case 'selected B2 64 16 pages g1' must be from 4"),
        ("select:2:64:1:3", [], "must be from 4 (sink + recent + 1) to 15"),
        ("select:2:64:1:5", ["attention.selector=window"], "attention.selector=window keeps no landmarks"),
        ("dense:2:64:1", ["attention.backend=flashinfer"], "attention.backend=flashinfer cannot serve"),
        ("dense:20000:400000:1", [], "of these rows fits"),
    ],
)
def test_bad_input(case: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--case", case, *SIZES, *more]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
