"""Reward functions that the tests' runs name by path."""

from __future__ import annotations

from sparrow_core.train_contracts import Completion


def share_of_low_words(completion: Completion) -> float:
    """Share of the drawn words whose number is below 20; words are ``w0`` to ``w56``."""
    words = completion.text.split()
    return sum(int(word[1:]) < 20 for word in words) / max(len(words), 1)
