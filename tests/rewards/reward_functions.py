"""Rewards that behave and misbehave, by what the completion's text asks for."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from typing import ClassVar

from sparrow_core.contracts import PluginConfig
from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Completion, Reward


def length(completion: Completion, scale: float = 1.0) -> float:
    return scale * completion.num_tokens


def act(completion: Completion) -> float:
    """Does what the text says, else returns it as a number."""
    match completion.text.split():
        case ["raise"]:
            raise RuntimeError("no such answer")
        case ["exit", code]:
            os._exit(int(code))
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["loop"]:
            while True:
                pass
        case ["loop", path]:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", path])
            while True:
                time.sleep(1)
        case ["none"]:
            return None  # type: ignore[return-value]
        case ["memory"]:
            return float(len(bytearray(8 * 2**30)))
        case ["pid"]:
            return float(os.getpid())
        case ["interrupt"]:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            time.sleep(5)
        case ["sleep", seconds, value]:
            time.sleep(float(seconds))
            return float(value)
        case ["warn"]:
            logging.getLogger(__name__).warning("it is %s", "late")
        case ["print"]:
            print("x" * 100_000)
    try:
        return float(completion.text)
    except ValueError:
        return 0.0


class Unbuildable(Reward):
    class Config(PluginConfig):
        type: str = "unbuildable"
        how: str = "input"

    Config: ClassVar[type[PluginConfig]]

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        if config.how == "exit":  # type: ignore[attr-defined]
            os._exit(7)
        if config.how == "sleep":  # type: ignore[attr-defined]
            time.sleep(600)
        raise InputError("the moon is not up")

    def score(self, completion: Completion) -> float:
        return 0.0
