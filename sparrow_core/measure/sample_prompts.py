"""Prompts for a first run: short tasks from reasoning-gym and long real text."""

from __future__ import annotations

import importlib.util

from sparrow_core.errors import InputError
from sparrow_core.prompts import Prompt

_TASKS = ("chain_sum", "gsm_symbolic", "word_sorting", "family_relationships")
_TOPICS = ("typesnumeric", "formatstrings", "specialnames", "customization", "import", "compound", "types", "datamodel")


def reasoning_prompts(count: int, seed: int = 0) -> list[Prompt]:
    """``count`` questions, in turn from several reasoning-gym tasks. Raises InputError when it is not installed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise InputError("reasoning-gym is not installed; run `pip install reasoning-gym` or give prompts.path")
    import reasoning_gym

    prompts = []
    for index in range(count):
        task = _TASKS[index % len(_TASKS)]
        entry = reasoning_gym.create_dataset(task, size=1, seed=seed + index)[0]
        prompts.append(Prompt(f"reasoning-gym:{task}", messages=({"role": "user", "content": entry["question"]},)))
    return prompts


def long_text_prompts(characters: list[int]) -> list[Prompt]:
    """The language reference that ships with Python, cut to each length, to be continued by the model."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in _TOPICS if len(topics.get(name, "")) > 4000]
    prompts = []
    for index, size in enumerate(characters):
        text = "\n\n".join(texts[index % len(texts) :] + texts[: index % len(texts)])
        prompts.append(Prompt(f"python language reference, {size} characters", text=text[:size]))
    return prompts
