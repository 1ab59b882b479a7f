"""What a checkpoint holds beside weights and optimizer: where the run is, and what its policy has seen."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import torch

from sparrow_core.contracts import SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream
from sparrow_trainers.data.order import PromptOrder


@dataclass(slots=True)
class RunState:
    """The same on every rank."""

    model: str
    policy: SparsityPolicy
    order: PromptOrder
    stream: MismatchStream
    """The last step's acceptances."""
    step: int = 0
    """RL steps that are done."""
    policy_version: int = 0
    """Updates of the weights so far."""
    generated_tokens: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "step": self.step,
            "policy_version": self.policy_version,
            "generated_tokens": self.generated_tokens,
            "policy": self.policy.state_dict(),
            "order": self.order.state_dict(),
            "stream": self.stream.state_dict(),
            "rng": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode("ascii"),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises InputError when the state is of another model, or of other prompts."""
        if state["model"] != self.model:
            raise InputError(f"the checkpoint is of model {state['model']!r} but model.source is {self.model!r}")
        self.order.load_state_dict(state["order"])
        self.policy.load_state_dict(state["policy"])
        self.stream = MismatchStream.from_state_dict(state["stream"])
        self.step = int(state["step"])
        self.policy_version = int(state["policy_version"])
        self.generated_tokens = int(state["generated_tokens"])
        torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(state["rng"])), dtype=torch.uint8))
