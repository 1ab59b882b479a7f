"""A new small model, taught by supervised steps until it answers as well as asked for, as a Hugging Face directory.

Shapes: T packed tokens, R answer tokens of a batch (the end token after each answer among them), V vocabulary.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from sparrow_core.config import save_config
from sparrow_core.errors import InputError
from sparrow_core.measure.progress import Progress
from sparrow_core.model import LanguageModel, PackedDocuments, build_random, export_model
from sparrow_core.train_contracts import PromptExample, PromptSource
from sparrow_trainers.data.config import DataConfig
from sparrow_trainers.data.encode import encode_example
from sparrow_trainers.data.order import PromptOrder
from sparrow_trainers.data.prompt_set import build_source
from sparrow_trainers.tasks.config import AnswersSection, WarmStartConfig
from sparrow_trainers.tasks.words import word_tokenizer
from sparrow_trainers.titan.config import MemorySection, ParallelSection
from sparrow_trainers.titan.learner import Learner
from sparrow_trainers.titan.ranks import running_ranks


@dataclass(frozen=True, slots=True)
class WarmStart:
    directory: Path
    steps: int
    expected_reward: float
    """Of ``leading_words`` at temperature 1 on the held-out prompts."""
    num_parameters: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and its right answer, encoded."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    """With the end token."""


def warm_start(config: WarmStartConfig, progress: Progress) -> WarmStart:
    """Make the model of ``config`` in ``config.output``; the same seeds give the same weights.

    Raises InputError before the first step when the output exists or prompts have no answer or do not fit, and
    after the last one when ``max_steps`` did not reach ``target_reward``. Nothing is written then.
    """
    output = Path(config.output).expanduser()
    if output.exists():
        raise InputError(f"output={config.output!r} exists already; give another directory, or remove it first")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("sparrow warm-start runs in one process; start it without torchrun")
    source, held_out = _source(config.data), _source(config.held_out)
    tokenizer = word_tokenizer(_texts(source, config.data.field))
    checked = _held_out_pairs(held_out, tokenizer, config)
    model = build_random(
        config.model.hf_config(len(tokenizer), tokenizer.eos_token_id), config.model.seed, name=output.name
    )
    with running_ranks(ParallelSection(), model.device) as ranks:
        learner = Learner(model, ranks, MemorySection(), config.optimizer, total_updates=config.max_steps)
        steps, reward = _teach(learner, _batches(source, tokenizer, config), checked, config, progress)
        whole = learner.full_weights()
    if reward < config.target_reward:
        raise InputError(
            f"the expected reward is {reward:.3f} after max_steps={steps}, below target_reward="
            f"{config.target_reward:g}; raise max_steps, or lower target_reward or the difficulty of data.source"
        )
    _write(whole, tokenizer, output)
    save_config(config, output)
    return WarmStart(output, steps, reward, sum(p.numel() for p in set(whole.module.parameters())))


def _write(model: LanguageModel, tokenizer: Any, output: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        tokenizer.save_pretrained(work)
        export_model(dataclasses.replace(model, directory=Path(work)), output)


def _source(section: AnswersSection) -> PromptSource:
    return build_source(DataConfig(source=section.source))


def _texts(source: PromptSource, field: str) -> Any:
    for index in range(len(source)):
        example = source[index]
        yield example.text or ""
        yield _answer(example, field)


def _answer(example: PromptExample, field: str) -> str:
    answer = example.fields.get(field)
    if not isinstance(answer, str) or not answer:
        raise InputError(
            f"data.field={field!r}: prompt {example.prompt_id} has {answer!r} there; its source must give the right "
            f"answer's words, and has {', '.join(sorted(example.fields)) or 'no field'}"
        )
    return answer


def encode_pair(example: PromptExample, tokenizer: Any, field: str, context: int) -> Pair:
    """Raises InputError for a word that the tokenizer does not know, or a pair longer than ``context``."""
    pair = Pair(
        encode_example(example, tokenizer, chat=False),
        (*tokenizer.encode(_answer(example, field)), tokenizer.eos_token_id),
    )
    if tokenizer.unk_token_id in pair.prompt_ids + pair.answer_ids:
        raise InputError(
            f"prompt {example.prompt_id} has words that no prompt of data.source has; make data.source larger"
        )
    num_tokens = len(pair.prompt_ids) + len(pair.answer_ids)
    if num_tokens > context:
        raise InputError(
            f"prompt {example.prompt_id} and its answer have {num_tokens} tokens, more than model.context={context}; "
            "raise it"
        )
    return pair


def _held_out_pairs(source: PromptSource, tokenizer: Any, config: WarmStartConfig) -> list[Pair]:
    if len(source) < config.num_held_out:
        raise InputError(f"num_held_out={config.num_held_out} but held_out.source has {len(source)} prompts; lower it")
    field, context = config.held_out.field, config.model.context
    return [encode_pair(source[index], tokenizer, field, context) for index in range(config.num_held_out)]


def _batches(source: PromptSource, tokenizer: Any, config: WarmStartConfig) -> Any:
    order = PromptOrder(len(source), config.data.seed)
    while True:
        examples = [source[index] for index in order.take(config.batch)]
        yield [encode_pair(example, tokenizer, config.data.field, config.model.context) for example in examples]


def _teach(
    learner: Learner, batches: Any, held_out: Sequence[Pair], config: WarmStartConfig, progress: Progress
) -> tuple[int, float]:
    """Supervised steps until the target or ``max_steps``: (steps, expected reward)."""
    reward = 0.0
    with progress.task("warm start", config.max_steps) as done:
        for step in range(1, config.max_steps + 1):
            answer_logits_RV, targets_R = _answer_logits(learner, next(batches))
            torch.autograd.backward(F.cross_entropy(answer_logits_RV, targets_R))
            learner.step()
            done(step)
            if step % config.check_every == 0 or step == config.max_steps:
                reward = expected_reward(learner, held_out, config.batch)
                if reward >= config.target_reward:
                    break
    return step, reward


def _answer_logits(learner: Learner, pairs: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 logits ``[R, V]`` that predict the answers' tokens, and those tokens ``[R]``."""
    inputs = [torch.tensor((*pair.prompt_ids, *pair.answer_ids[:-1])) for pair in pairs]
    offsets = torch.tensor([0, *map(len, inputs)]).cumsum(0)
    logits_TV = learner.logits(torch.cat(inputs)[None], PackedDocuments(offsets.int()))
    rows = [torch.arange(end - len(p.answer_ids), end) for end, p in zip(offsets[1:].tolist(), pairs, strict=True)]
    return logits_TV[torch.cat(rows)], torch.tensor([token for pair in pairs for token in pair.answer_ids])


@torch.no_grad()
def expected_reward(learner: Learner, pairs: Sequence[Pair], batch: int) -> float:
    """What sampling at temperature 1 would earn of ``leading_words`` on average, by the chain rule.

    The expected number of right tokens before the first mistake is the sum over k of P(first k tokens right).
    """
    total = 0.0
    for start in range(0, len(pairs), batch):
        part = pairs[start : start + batch]
        logits_RV, targets_R = _answer_logits(learner, part)
        logp_R = logits_RV.log_softmax(-1).gather(-1, targets_R[:, None]).squeeze(-1)
        for logp in torch.split(logp_R, [len(pair.answer_ids) for pair in part]):
            total += float(logp.double().cumsum(0).exp().mean())
    return total / len(pairs)
