"""A tokenizer of whole words, made from the words of prompts and answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


def word_tokenizer(texts: Iterable[str]) -> Any:
    """A transformers tokenizer with one token for each distinct word of ``texts`` (split at white space), sorted."""
    words = sorted({word for text in texts for word in text.split()} - {PAD, EOS, UNKNOWN})
    vocabulary = {word: number for number, word in enumerate([PAD, EOS, UNKNOWN, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )
