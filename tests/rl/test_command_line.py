"""``sparrow train`` from the command line: bad input is one message and exit code 2, and the examples stay valid."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparrow_core.cli import main
from sparrow_trainers.config import TrainConfig

EXAMPLES = Path(__file__).parents[2] / "examples"
Capture = pytest.CaptureFixture[str]


def arguments(settings: dict[str, Any], **changes: Any) -> list[str]:
    return ["train", "--quiet", *(f"{key}={value}" for key, value in {**settings, **changes}.items())]


BAD = {
    "prompts missing": ({"data.source": "{type: jsonl, path: none.jsonl}"}, "none.jsonl"),
    "wrong column": ({"data.source.prompt_column": "question"}, "question"),
    "unknown reward": ({"rewards.terms": "[exakt]"}, "exakt"),
    "relative and absolute clip": (
        {"objective.policy_loss": "{type: clip, low: 0.2, high: 0.28, low_cap: 0.8, high_cap: 1.3}"},
        "objective.policy_loss",
    ),
    "ranks": ({"parallel.dp_shard": 3}, "3"),
    "unknown key": ({"train.step": 3}, "did you mean 'train.steps'?"),
    "policy": ({"policy": "{type: static, pages: 2}"}, "give at least"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_message_and_exit_code_2(
    settings: dict[str, Any], capsys: Capture, changes: dict[str, Any], message: str
) -> None:
    assert main(arguments(settings, **changes)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert "Traceback" not in captured.err + captured.out


@pytest.mark.parametrize("bad", [False, True])
def test_a_dry_run_starts_nothing(settings: dict[str, Any], capsys: Capture, tmp_path: Path, bad: bool) -> None:
    output = tmp_path / "dry"
    changes = {"output": output, **({"rewards.terms": "[exakt]"} if bad else {})}
    code = main(["train", "--dry-run", *arguments(settings, **changes)[2:]])
    assert code == (2 if bad else 0)
    assert not output.exists()
    assert ("memory" in capsys.readouterr().out) is not bad


def test_every_training_example_passes_a_dry_run(
    model_directory: Path, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the tiny model on a CPU in place of theirs; prompts from files that the reader brings get a stand-in."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"w{i} w2", "answer": "w3"}) + "\n" for i in range(600)))
    found = [path for path in sorted(EXAMPLES.glob("*.yaml")) if "rewards" in (yaml.safe_load(path.read_text()))]
    assert {path.name for path in found} >= {"tiny_rl.yaml", "smollm2_gpu.yaml", "qwen3_8b_8gpu.yaml"}
    model = shutil.copytree(model_directory, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 65536}))
    monkeypatch.chdir(tmp_path)
    for path in found:
        assert main(["train", "--dry-run", str(path), *stand_ins(path, model, prompts)]) == 0, path
    assert "error" not in capsys.readouterr().err


def stand_ins(path: Path, model: Path, prompts: Path) -> list[str]:
    """What the example needs that a test cannot have: its checkpoint, a GPU, other ranks, the reader's files."""
    content = yaml.safe_load(path.read_text())
    changes = [f"model.source={model}", "model.device=cpu", "attention.backend=sdpa", "parallel.dp_shard=-1"]
    if "path" in content["data"]["source"]:
        changes.append(f"data.source.path={prompts}")
    if "path" in content.get("evaluate", {}).get("data", {}).get("source", {}):
        changes.append(f"evaluate.data.source.path={prompts}")
    return changes


def test_train_config_knows_every_key_of_the_examples() -> None:
    known = set(TrainConfig.model_fields)
    for path in EXAMPLES.glob("*.yaml"):
        content = yaml.safe_load(path.read_text())
        if "rewards" in content:
            assert set(content) <= known, path
