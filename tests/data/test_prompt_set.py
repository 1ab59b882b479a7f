"""From rows to token ids: chat templates, system messages, and prompts that are too long."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import PromptExample
from sparrow_trainers.data import PromptSet, encode_example, load_prompts, prompt_text
from tests.data.helpers import WordTokenizer, data_config

TEXT = PromptExample("t", text="how are you")
MESSAGES = PromptExample("m", messages=({"role": "user", "content": "hi"},))
SYSTEM = PromptExample("s", messages=({"role": "system", "content": "own"}, {"role": "user", "content": "hi"}))


@pytest.mark.parametrize(
    ("example", "chat", "system", "text"),
    [
        (TEXT, False, None, "how are you"),
        (TEXT, False, "be brief", "how are you"),
        (TEXT, True, None, "<user> how are you <assistant>"),
        (TEXT, True, "be brief", "<system> be brief <user> how are you <assistant>"),
        (MESSAGES, False, None, "<user> hi <assistant>"),
        (MESSAGES, False, "be brief", "<system> be brief <user> hi <assistant>"),
        (SYSTEM, True, "be brief", "<system> own <user> hi <assistant>"),
    ],
)
def test_templates_are_used_where_they_are_asked_for(
    example: PromptExample, chat: bool, system: str | None, text: str
) -> None:
    assert prompt_text(example, WordTokenizer(), chat, system=system) == text
    assert encode_example(example, WordTokenizer(), chat, system=system) == tuple(map(len, text.split()))


@pytest.mark.parametrize(
    ("example", "chat", "says"),
    [
        (MESSAGES, False, "prompt m needs a chat template but the model's tokenizer has none; take a model with a template"),
        (TEXT, True, r"prompt t needs a chat template .*; set data\.chat=false"),
        (PromptExample("e", messages=()), False, "prompt e has an empty list of messages"),
        (PromptExample("n"), True, "prompt n has neither text nor messages"),
        (PromptExample("b", text=" "), False, "prompt b has no tokens"),
    ],
)  # fmt: skip
def test_prompts_that_cannot_be_rendered_are_named(example: PromptExample, chat: bool, says: str) -> None:
    with pytest.raises(InputError, match=says):
        encode_example(example, WordTokenizer(chat=False), chat)


def prompts(tmp_path: Path, *texts: str, **settings: Any) -> PromptSet:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
    return load_prompts(data_config({"type": "jsonl", "path": str(path)}, **settings), WordTokenizer())


def test_prompts_that_are_too_long_leave_no_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        kept = prompts(tmp_path, "a b", "a b c", "a", "a b c d", max_prompt_tokens=2, too_long="drop")
    assert [kept[n].text for n in range(len(kept))] == ["a b", "a"]
    assert kept.num_dropped == 2
    assert "2 of 4 prompts have more than data.max_prompt_tokens=2 tokens" in caplog.text
    assert sorted(kept.order().take(2)) == [0, 1]
    with pytest.raises(IndexError):
        kept[2]


def test_prompts_that_are_too_long_are_an_error_by_default(tmp_path: Path) -> None:
    assert len(prompts(tmp_path, "a b", "c d", max_prompt_tokens=2)) == 2
    with pytest.raises(InputError, match=r"p\.jsonl:2 has 3 tokens, more than data\.max_prompt_tokens=2; raise it"):
        prompts(tmp_path, "a b", "a b c", max_prompt_tokens=2)
    with pytest.raises(InputError, match=r"all 1 prompts have more than data\.max_prompt_tokens=2"):
        prompts(tmp_path, "a b c", max_prompt_tokens=2, too_long="drop")


def test_the_template_counts_towards_the_limit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 4 tokens"):
        prompts(tmp_path, "a b", max_prompt_tokens=3, chat=True)


def test_an_unknown_source_names_those_there_are() -> None:
    with pytest.raises(
        InputError,
        match=r"sparrow\.data has no plugin 'jsonll'; known: .*hf_dataset, jsonl, parquet.*did you mean 'jsonl'",
    ):
        data_config({"type": "jsonll"})
