"""The order in which prompts are taken, as a state of two numbers that a checkpoint can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparrow_core.errors import InputError


class PromptOrder:
    """Goes through ``length`` prompts epoch after epoch, each epoch in a permutation of its own.

    The order depends on length, seed and shuffle alone: every rank that takes the same counts sees the same indices.
    """

    def __init__(self, length: int, seed: int, *, shuffle: bool = True) -> None:
        if length < 1:
            raise InputError(f"data.source has {length} prompts; give at least one")
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.position = 0
        """Prompts of this epoch that are taken already, 0 to length - 1."""
        self._order = self._epoch_order()

    def take(self, count: int) -> list[int]:
        """The next ``count`` indices. Past an epoch's end the next epoch begins, so a prompt can come twice."""
        if count < 0:
            raise ValueError(f"count={count} is negative")
        taken: list[int] = []
        while len(taken) < count:
            part = self._order[self.position : self.position + count - len(taken)]
            taken += [int(index) for index in part]
            self.position += len(part)
            if self.position == self.length:
                self.epoch += 1
                self.position = 0
                self._order = self._epoch_order()
        return taken

    def state_dict(self) -> dict[str, Any]:
        """JSON-like; see ``load_state_dict``."""
        return {
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "position": self.position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken. Raises InputError when it belongs to another order of prompts."""
        fixes = {
            "length": "the prompts have changed: give data.source as it was, or start from step 0",
            "seed": "set data.seed back, or start from step 0",
            "shuffle": "set data.shuffle back, or start from step 0",
        }
        for name, fix in fixes.items():
            if state[name] != getattr(self, name):
                raise InputError(
                    f"the saved prompt order has {name}={state[name]} but now it is {getattr(self, name)}; {fix}"
                )
        epoch, position = int(state["epoch"]), int(state["position"])
        if epoch < 0 or not 0 <= position < self.length:
            raise InputError(f"the saved prompt order is damaged: epoch={epoch}, position={position} of {self.length}")
        self.epoch, self.position = epoch, position
        self._order = self._epoch_order()

    def _epoch_order(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if not self.shuffle:
            return np.arange(self.length)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.length)
