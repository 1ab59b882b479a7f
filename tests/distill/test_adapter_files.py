"""Adapters on disk: read back the same, loaded by PEFT in a process of its own, and bad directories refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sparrow_core.errors import CheckpointError, InputError
from sparrow_core.model import export_model, load_model
from sparrow_trainers.distill.adapter_files import CONFIG_FILE, WEIGHTS_FILE, load_adapter, save_adapter
from tests.distill.helpers import logits_of, small_model, tokens_of, trained_adapter

LOAD_WITH_PEFT = """
import sys, torch
from safetensors.torch import load_file, save_file
from peft import PeftModel
from transformers import AutoModelForCausalLM
for folder in sys.argv[1:]:
    tokens = load_file(f"{folder}/tokens.safetensors")["tokens"]
    base = AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, f"{folder}/adapter").eval()
    with torch.no_grad():
        on = model(tokens).logits
        with model.disable_adapter():
            off = model(tokens).logits
    save_file({"on": on.contiguous(), "off": off.contiguous()}, f"{folder}/logits.safetensors")
"""


def test_peft_loads_our_adapter_and_gives_our_logits(tmp_path: Path) -> None:
    expected = {}
    for kind in ("llama", "qwen3"):
        model = small_model(kind, tie_word_embeddings=kind == "qwen3")
        adapter = trained_adapter(model, target_modules=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"))
        tokens_BL = tokens_of(model)
        export_model(model, tmp_path / kind / "model")
        save_adapter(adapter, model, tmp_path / kind / "adapter")
        save_file({"tokens": tokens_BL}, tmp_path / kind / "tokens.safetensors")
        off = logits_of(model, tokens_BL)
        with adapter.active(model):
            expected[kind] = (logits_of(model, tokens_BL), off)
    folders = [str(tmp_path / kind) for kind in expected]
    subprocess.run([sys.executable, "-c", LOAD_WITH_PEFT, *folders], check=True, capture_output=True, timeout=120)
    for kind, (on, off) in expected.items():
        theirs = load_file(tmp_path / kind / "logits.safetensors")
        assert (on - off).abs().max() > 0.1
        torch.testing.assert_close(theirs["on"], on, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(theirs["off"], off, rtol=1e-4, atol=1e-4)


def test_an_adapter_reads_back_the_same(tmp_path: Path) -> None:
    model = small_model("qwen3")
    adapter = trained_adapter(model, rank=5, alpha=7.5, target_modules=("down_proj", "k_proj"))
    again = load_adapter(model, save_adapter(adapter, model, tmp_path / "adapter"))
    assert (again.config.rank, again.config.alpha) == (5, 7.5)
    theirs = {(layer, name): update for layer, name, update in again.items()}
    for layer, name, update in adapter.items():
        assert torch.equal(theirs[layer, name].lora_A, update.lora_A)
        assert torch.equal(theirs[layer, name].lora_B, update.lora_B)


def test_the_model_card_names_the_base_model(tmp_path: Path) -> None:
    model = small_model()
    export_model(model, tmp_path / "base")
    model = load_model(str(tmp_path / "base"))
    card = (save_adapter(trained_adapter(model), model, tmp_path / "adapter") / "README.md").read_text()
    assert card.startswith(f'---\nbase_model: "{tmp_path / "base"}"\nlibrary_name: "peft"\n')


def test_a_directory_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    model = small_model()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        save_adapter(trained_adapter(model), model, tmp_path)


def _edit(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / CONFIG_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def _drop_a_layer(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file({name: t for name, t in tensors.items() if "layers.2." not in name}, folder / WEIGHTS_FILE)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / CONFIG_FILE).unlink(), "missing or damaged"),
        (lambda folder: (folder / WEIGHTS_FILE).write_bytes(b"x" * 64), "missing or damaged"),
        (_edit(r="many"), "missing or damaged"),
        (_edit(target_modules=["lm_head"]), "known are q_proj"),
        (_edit(use_dora=True), "use_dora"),
        (_edit(r=4), "is .* but .* needs"),
        (_edit(target_modules=["q_proj"]), "holds"),
        (_drop_a_layer, "lacks .*layers.2"),
    ],
    ids=["no config", "torn weights", "odd rank", "unknown target", "dora", "rank", "targets", "layer"],
)
def test_damaged_directories_are_refused(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    model = small_model()
    folder = save_adapter(trained_adapter(model), model, tmp_path / "adapter")
    damage(folder)
    with pytest.raises((CheckpointError, InputError), match=f"(?s){message}"):
        load_adapter(model, folder)


def test_an_adapter_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    llama = small_model("llama")
    folder = save_adapter(trained_adapter(llama), llama, tmp_path / "adapter")
    with pytest.raises(InputError, match=r"llama model but .* is qwen3"):
        load_adapter(small_model("qwen3"), folder)
