"""The signposts task: follow a trail through places whose signs lie scattered over a long text.

A prompt is a shuffled list of signs, ``at07 go12`` (the sign at place 7 points to place 12), with words that mean
nothing after each, and then ``start at07``. The answer follows the signs, ``go12 at12 go31 at31 rest``, to the one
that says ``rest``. Every second word of it must be looked up at a distance that has nothing to do with its own
position, so a rollout that reads too few KV pages, or the wrong ones, goes astray.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field, model_validator

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import PromptExample, PromptSource

FILLERS = ("wind", "rain", "moss", "reed", "fern", "sand", "fog", "dusk")
START, REST = "start", "rest"


class SignpostsConfig(PluginConfig):
    type: str = "signposts"
    size: int = Field(1000, ge=1, description="number of puzzles")
    seed: int = Field(0, ge=0, description="of the puzzles; each depends on it and on its own number alone")
    places: int = Field(40, ge=2, le=100, description="places there are names for")
    min_signs: int = Field(12, ge=2, description="fewest signs of a puzzle")
    max_signs: int = Field(32, ge=2, description="most signs of a puzzle; at most as many as places")
    fillers: int = Field(4, ge=0, description="words without meaning after each sign")
    min_hops: int = Field(4, ge=1, description="fewest signs followed before the one that says rest")
    max_hops: int = Field(8, ge=1, description="most signs followed, where the puzzle has that many")

    @model_validator(mode="after")
    def _ranges_fit(self) -> SignpostsConfig:
        if not self.min_signs <= self.max_signs <= self.places:
            raise InputError(
                f"data.source needs min_signs <= max_signs <= places, not {self.min_signs}, {self.max_signs}, "
                f"{self.places}; lower the first or raise the last"
            )
        if not (self.min_hops <= self.max_hops < self.max_signs and self.min_hops < self.min_signs):
            raise InputError(
                f"data.source needs min_hops <= max_hops, min_hops={self.min_hops} below min_signs={self.min_signs} "
                f"and max_hops={self.max_hops} below max_signs={self.max_signs}; lower the hops or raise the signs"
            )
        return self


class SignpostsSource(PromptSource):
    """Puzzles as prompts; the field ``answer`` is the right continuation."""

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = SignpostsConfig

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        assert isinstance(config, SignpostsConfig)
        self._settings = config

    def __len__(self) -> int:
        return self._settings.size

    def __getitem__(self, index: int) -> PromptExample:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        puzzle = make_puzzle(self._settings, index)
        fields: dict[str, Any] = {"answer": " ".join(puzzle.walk())}
        return PromptExample(f"signposts:{self._settings.seed}:{index}", text=puzzle.prompt, fields=fields)


@dataclass(frozen=True, slots=True)
class Puzzle:
    prompt: str
    signs: dict[int, int | None]
    """The place each place's sign points to; None says ``rest``."""
    start: int

    def walk(self) -> list[str]:
        """The right answer's words."""
        words: list[str] = []
        at: int | None = self.start
        while at is not None:
            at = self.signs[at]
            words += [REST] if at is None else [go_word(at), at_word(at)]
        return words


def at_word(place: int) -> str:
    return f"at{place:02d}"


def go_word(place: int) -> str:
    return f"go{place:02d}"


def make_puzzle(config: SignpostsConfig, number: int) -> Puzzle:
    draw = random.Random(f"signposts {config.seed} {number}")
    num_signs = draw.randint(config.min_signs, config.max_signs)
    hops = draw.randint(config.min_hops, min(config.max_hops, num_signs - 1))
    order = draw.sample(range(config.places), num_signs)
    trail, others = order[: hops + 1], order[hops + 1 :]
    signs: dict[int, int | None] = dict(zip(trail, [*trail[1:], None], strict=True))
    # The others lead round in a circle, so that leaving the trail is not repaired by chance.
    signs |= dict(zip(others, [*others[1:], *others[:1]], strict=True))
    listed = list(signs)
    draw.shuffle(listed)
    words: list[str] = []
    for place in listed:
        target = signs[place]
        words += [at_word(place), REST if target is None else go_word(target)]
        words += draw.choices(FILLERS, k=config.fillers)
    return Puzzle(" ".join([*words, START, at_word(trail[0])]), signs, trail[0])
