"""The adapter in training: its optimizer, its checkpoint, and the merged weights that rollouts sample with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparrow_core import registry
from sparrow_core.config import AttentionConfig
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.train_contracts import Reduce
from sparrow_trainers.distill.adapter import AdapterConfig, LoraAdapter
from sparrow_trainers.distill.adapter_files import load_adapter
from sparrow_trainers.distill.config import DistillConfig
from sparrow_trainers.distill.merge import merged_model, refresh_merged
from sparrow_trainers.distill.observe import observe_student
from sparrow_trainers.distill.step import DistillMetrics, Student, adapter_optimizer, distill_step
from sparrow_trainers.distill.teacher import StudentSample

_MOMENTS = ("exp_avg", "exp_avg_sq")


class AdapterTraining:
    """An adapter of ``model``, whose weights are constants here and may change between calls.

    ``rollout_model`` holds copies of the weights that the adapter changes, merged; all others are ``model``'s own
    memory. The policy's weights are never written.

    Args:
        reduce: sums over all ranks.

    Raises InputError when ``config.initial`` is an adapter of another model or of another shape than
    ``config.adapter``.
    """

    def __init__(self, model: LanguageModel, attention: AttentionConfig, config: DistillConfig, reduce: Reduce) -> None:
        self.config = config
        self.adapter = _first_adapter(model, config)
        self.optimizer = adapter_optimizer(self.adapter, config.optimizer)
        self.rollout_model = merged_model(model, self.adapter)
        selector = registry.load("sparrow.selectors", attention.selector.type)(attention.selector, attention.layout)
        self._student = Student(model, self.adapter, selector, attention.layout)
        self._reduce = reduce

    @property
    def model(self) -> LanguageModel:
        return self._student.model

    def step(
        self, samples: Sequence[StudentSample], stream: MismatchStream, schedule: BudgetSchedule | None = None
    ) -> DistillMetrics:
        """One update on all ranks' samples; ``stream`` takes in the acceptances before it. Every rank must call it.

        Args:
            schedule: budgets to train under; None takes those that the traces recorded.

        Raises as ``distill_step`` does.
        """
        student = self._under(schedule)
        return distill_step(student, samples, self.config, self.optimizer, mismatch=stream, reduce=self._reduce)

    def observe(
        self,
        samples: Sequence[StudentSample],
        stream: MismatchStream,
        schedule: BudgetSchedule | None = None,
        *,
        with_adapter: bool,
    ) -> float:
        """Forward KL per token over all ranks' samples; ``stream`` takes in this rank's acceptances."""
        student = self._under(schedule)
        total = observe_student(student, samples, self.config, stream, with_adapter=with_adapter)
        tokens = sum(len(sample.trace.token_ids) for sample in samples)
        sums = self._reduce(torch.tensor([total, tokens], dtype=torch.float64, device=self.model.device)).tolist()
        return float(sums[0] / sums[1])

    def publish(self) -> None:
        """Bring ``rollout_model`` up to the present weights and adapter, in place."""
        refresh_merged(self.rollout_model, self.model, self.adapter)

    def state_dict(self) -> dict[str, Any]:
        """Weights and AdamW's moments by parameter; moments are zero before the first update."""
        state: dict[str, Any] = {}
        for name, parameter in self.adapter.named_parameters():
            known = self.optimizer.state.get(parameter, {})
            state[f"weight.{name}"] = parameter.detach()
            state[f"step.{name}"] = known.get("step", torch.zeros(()))
            for moment in _MOMENTS:
                state[f"{moment}.{name}"] = known.get(moment, torch.zeros_like(parameter))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.adapter.named_parameters():
                parameter.copy_(state[f"weight.{name}"])
                moments = {moment: state[f"{moment}.{name}"].clone() for moment in _MOMENTS}
                self.optimizer.state[parameter] = {"step": state[f"step.{name}"].clone(), **moments}

    def _under(self, schedule: BudgetSchedule | None) -> Student:
        known = self._student
        return Student(known.model, known.adapter, known.selector, known.layout, schedule)


def _first_adapter(model: LanguageModel, config: DistillConfig) -> LoraAdapter:
    if config.initial is None:
        return LoraAdapter(model, config.adapter)
    adapter = load_adapter(model, config.initial)
    stored, asked = _shape(adapter.config), _shape(config.adapter)
    different = [name for name in stored if stored[name] != asked[name]]
    if different:
        listed = " and ".join(f"adapter.{name}={stored[name]}" for name in different)
        raise InputError(f"distill.initial={config.initial!r} holds another adapter; set {listed} beside it")
    return adapter


def _shape(config: AdapterConfig) -> dict[str, Any]:
    return {"rank": config.rank, "alpha": config.alpha, "target_modules": sorted(config.target_modules)}
