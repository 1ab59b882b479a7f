"""Whether the device engine serves a rollout, and the step it runs: the last one where that fits, else a new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch.distributed.tensor import DTensor

from sparrow_core.config import RolloutConfig
from sparrow_core.contracts import AttentionBackend, PageSelector, SparsityPolicy
from sparrow_core.engine.device_run import chooses_per_sequence
from sparrow_core.engine.device_sampling import SamplingMode
from sparrow_core.engine.device_step import DeviceStep
from sparrow_core.engine.options import EngineOptions
from sparrow_core.engine.sequence import SequenceState
from sparrow_core.engine.session import RolloutSession
from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel

_WIDTH_STEP = 64
"""On CUDA, page-table widths and largest budgets are rounded up to this many pages, so that rollouts of slightly other
lengths and budgets replay the same graphs."""


def choose_engine(
    model: LanguageModel,
    rollout: RolloutConfig,
    backend: type[AttentionBackend],
    selector: type[PageSelector],
) -> tuple[Literal["host", "device"], bool]:
    """The engine that ``rollout.engine`` means here, and whether its steps are compiled.

    Raises InputError when the device engine, or compilation, is asked for and cannot be had.
    """
    on_cuda = model.device.type == "cuda"
    reasons = [] if rollout.engine == "host" else not_served(model, backend, selector)
    if rollout.engine == "device" and reasons:
        raise InputError(f"rollout.engine=device cannot serve this rollout: {'; '.join(reasons)}")
    device = rollout.engine == "device" or (rollout.engine == "auto" and on_cuda and not reasons)
    if rollout.compile is True and not device:
        why = "; ".join(reasons) or "rollout.engine=auto takes the host engine on a CPU"
        if rollout.engine == "host":
            why = "rollout.engine=host was chosen"
        raise InputError(
            f"rollout.compile=true compiles the device engine's steps, but {why}; "
            "set rollout.engine=device, or rollout.compile=auto"
        )
    return ("device" if device else "host"), device and (on_cuda if rollout.compile == "auto" else rollout.compile)


def not_served(model: LanguageModel, backend: type[AttentionBackend], selector: type[PageSelector]) -> list[str]:
    """Reasons why the device engine cannot run this model, backend and selector; each names the alternative."""
    reasons = []
    if any(isinstance(weight, DTensor) for weight in model.module.parameters()):
        reasons.append(f"{model.name}'s weights are sharded over ranks; set rollout.engine=host")
    if model.device.type == "cuda":
        needed = backend.capabilities
        if not (needed.graph_capture and needed.device_budgets):
            reasons.append(
                f"attention.backend={backend.Config.model_fields['type'].default} cannot be captured in a CUDA graph; "
                "set attention.backend=triton or rollout.engine=host"
            )
        if not selector.graph_capture:
            reasons.append(
                f"attention.selector={selector.Config.model_fields['type'].default} cannot be captured in a CUDA "
                "graph; set attention.selector=mean_landmark or rollout.engine=host"
            )
    return reasons


def device_step_for(
    last: DeviceStep | None,
    model: LanguageModel,
    session: RolloutSession,
    options: EngineOptions,
    sequences: Sequence[SequenceState],
    policy: SparsityPolicy,
) -> DeviceStep:
    """``last`` where it serves these sequences, graphs included, else a new step of the sizes they need."""
    size = session.cache.page_size
    schedule = policy.schedule()
    mode = SamplingMode.of([s.request for s in sequences])
    context = -(-model.context_length // size)
    width = max(-(-(s.prompt_length + s.max_new_tokens) // size) for s in sequences)
    if options.batch_invariant:
        width = context
    most = width if chooses_per_sequence(policy) else max(schedule.pages)
    stops = max(len(s.request.sampling.stop_ids) for s in sequences)
    if last is not None and last.serves(session, schedule, mode, width=width, max_budget=most, num_stops=stops):
        return last
    if model.device.type == "cuda":
        width, most = (-(-pages // _WIDTH_STEP) * _WIDTH_STEP for pages in (width, min(most, width)))
    return DeviceStep(model, session, options, schedule, mode, width=width, max_budget=most, num_stops=stops)
