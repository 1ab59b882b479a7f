"""Reward functions that the tests' runs name by path."""

from __future__ import annotations

from sparrow_core.train_contracts import Completion


def share_of_low_words(completion: Completion) -> float:
    """Share of the drawn words whose number is below 20; words are ``w0`` to ``w56``."""
    words = completion.text.split()
    return sum(int(word[1:]) < 20 for word in words) / max(len(words), 1)


def nothing(completion: Completion) -> float:
    return 0.0


def raises_on_w1(completion: Completion) -> float:
    if "w1" in completion.text.split():
        raise ValueError("no w1, please")
    return 1.0
