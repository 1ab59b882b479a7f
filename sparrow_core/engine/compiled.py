"""``torch.compile`` of a decode step: the model's blocks, one graph for all of them, and the draws.

Attention stays a call into the session, as an operator that the compiler does not look into. It gets session and layer
as the values of a tensor: as Python values they would make every block a graph of its own. The operator writes the KV
cache, which the compiler need not know: no other operation of a block touches it, and blocks run in order.

Shapes: B rows, N query heads, K KV heads, H head dim.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch._dynamo

from sparrow_core.engine.device_sampling import device_sample
from sparrow_core.engine.session import RolloutSession
from sparrow_core.model import LanguageModel

_RECOMPILE_LIMIT = 64
"""Versions of one function: a bucket of rows, a dtype or a model each make one."""

_sessions: WeakValueDictionary[int, RolloutSession] = WeakValueDictionary()
_handles = itertools.count()


@torch.library.custom_op("sparrow::session_attend", mutates_args=())
def session_attend(
    q_B1NH: torch.Tensor, k_B1KH: torch.Tensor, v_B1KH: torch.Tensor, where_2: torch.Tensor, scale: float
) -> torch.Tensor:
    """``RolloutSession.attend`` of the session and layer in ``where_2`` (int64 on the CPU)."""
    handle, layer = where_2.tolist()
    return _sessions[handle].attend(layer, q_B1NH, k_B1KH, v_B1KH, scale).contiguous()


@session_attend.register_fake
def _(
    q_B1NH: torch.Tensor, k_B1KH: torch.Tensor, v_B1KH: torch.Tensor, where_2: torch.Tensor, scale: float
) -> torch.Tensor:
    return q_B1NH.new_empty(q_B1NH.shape)


class _LayerSession:
    """What a compiled block's attention is bound to."""

    def __init__(self, handle: int, layer: int) -> None:
        self.where_2 = torch.tensor([handle, layer])

    def attend(
        self, layer: int, q_BLNH: torch.Tensor, k_BLNH: torch.Tensor, v_BLNH: torch.Tensor, scale: float
    ) -> torch.Tensor:
        out: torch.Tensor = torch.ops.sparrow.session_attend(q_BLNH, k_BLNH, v_BLNH, self.where_2, scale)
        return out


def _run_block(block: Any, *args: Any) -> torch.Tensor:
    out: torch.Tensor = block.forward(*args)
    return out


class CompiledStep:
    """The compiled parts of one model's decode steps with one session."""

    def __init__(self, model: LanguageModel, session: RolloutSession, backend: str | Callable[..., Any]) -> None:
        handle = next(_handles)
        _sessions[handle] = session
        self._blocks = list(model.module.layers.values())
        self._sessions = [_LayerSession(handle, b.attention.inner_attention.layer_id) for b in self._blocks]
        self._run_block = torch.compile(_run_block, dynamic=False, fullgraph=True, backend=backend)
        self.sample = torch.compile(device_sample, dynamic=False, fullgraph=True, backend=backend)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The model's blocks run compiled inside the block; prefill and training keep theirs as they are."""
        attentions = [block.attention.inner_attention for block in self._blocks]
        before = [(a.session, b._compiled_call_impl) for a, b in zip(attentions, self._blocks, strict=True)]
        try:
            for attention, block, session in zip(attentions, self._blocks, self._sessions, strict=True):
                attention.session = session
                block._compiled_call_impl = partial(self._run_block, block)
            with torch._dynamo.config.patch(recompile_limit=_RECOMPILE_LIMIT):
                yield
        finally:
            for attention, block, (session, implementation) in zip(attentions, self._blocks, before, strict=True):
                attention.session, block._compiled_call_impl = session, implementation
