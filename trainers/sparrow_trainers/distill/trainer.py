"""The distillation loop: take traces, ask the dense teacher, update the adapter, let the sparsity policy observe."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from sparrow_core.closed_loop import observe
from sparrow_core.engine.build import build_policy
from sparrow_core.engine.stats import EngineStats
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream
from sparrow_core.model import LanguageModel
from sparrow_core.report.distilled import ACCEPTANCES
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.trace import Trace
from sparrow_core.train_log import RunInfo, StepRecord, bin_records
from sparrow_trainers.distill.adapter_training import AdapterTraining
from sparrow_trainers.distill.metrics import stream_metrics, update_metrics
from sparrow_trainers.distill.policy_feedback import observe_reference
from sparrow_trainers.distill.run_config import DistillRunConfig
from sparrow_trainers.distill.sources import TraceSource
from sparrow_trainers.distill.teacher import StudentSample, ask_teacher
from sparrow_trainers.rl.collect import merged_stream
from sparrow_trainers.rl.metrics import mismatch_metrics
from sparrow_trainers.rl.signals import stop_after_step
from sparrow_trainers.rl.state import RunState
from sparrow_trainers.run_log import RunLog, TrainProgress
from sparrow_trainers.titan.checkpoints import Checkpoints
from sparrow_trainers.titan.ranks import Ranks

_EVALUATION_STEP = 0
"""Every evaluation draws with the same seeds, so that two differ by the adapter alone."""


class DistillTrainer:
    """One run on this rank. Every rank makes the same calls.

    Args:
        source: makes traces with ``training.rollout_model``, or reads them.
        held_out: likewise, for evaluation.
    """

    def __init__(
        self,
        config: DistillRunConfig,
        training: AdapterTraining,
        source: TraceSource,
        held_out: TraceSource | None,
        ranks: Ranks,
        console: Console | None,
    ) -> None:
        self.config = config
        self.training = training
        self.ranks = ranks
        self.policy = build_policy(config.policy, config.attention.layout)
        self.state = RunState(training.model.name, self.policy, source.order(), self._new_stream())
        self.output = Path(config.output)
        self.checkpoints = Checkpoints(self.output, config.checkpoint, ranks, self.state, adapter=training)
        self.progress = TrainProgress(console if ranks.is_main else None, "distillation")
        self._console = console if ranks.is_main else None
        self._source = source
        self._held_out = held_out

    def run(self) -> StepRecord | None:
        """Train up to ``train.steps``, from the latest checkpoint where there is one; the last step's record.

        Raises KeyboardInterrupt after a Ctrl-C, once the step is done and saved.
        """
        if self.checkpoints.load() is not None:
            self.training.publish()
        config, state = self.config, self.state
        record: StepRecord | None = None
        log = RunLog(
            self.output,
            config.log,
            _info(config, self.training.model),
            start_step=state.step,
            rank=self.ranks.rank,
            settings=config.model_dump(mode="json"),
        )
        with log, stop_after_step(self._say) as wants_stop:
            with self.progress.steps(config.train.steps, state.step) as done:
                while state.step < config.train.steps:
                    record = self._step()
                    log.write(record)
                    done(record)
                    stop = any(self.ranks.gather(wants_stop()))
                    last = state.step == config.train.steps
                    self.checkpoints.save(state.step, last=last or stop)
                    if stop and not last:
                        self.checkpoints.finish(state.step)
                        raise KeyboardInterrupt
            self.checkpoints.finish(state.step)
        return record

    def close(self) -> None:
        self.checkpoints.close()

    def _say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text)

    def _step(self) -> StepRecord:
        config, state, step = self.config, self.state, self.state.step
        started = time.perf_counter()
        schedule, version = self.policy.schedule(), state.policy_version
        with self.progress.rollout(step) as on_step:
            traces = self._traces(self._source, state.order.take(config.train.prompts_per_step), step, on_step)
        rolled = time.perf_counter()
        samples = ask_teacher(self.training.model, traces, config.distill)
        taught = time.perf_counter()
        metrics, reference = self._reference(samples, step, schedule)
        compared = time.perf_counter()
        stream = self._new_stream()
        self.checkpoints.before_update()
        steps = [self.training.step(samples, stream, self._budgets(schedule))]
        for _ in range(config.distill.updates - 1):
            steps.append(self.training.step(samples, self._new_stream(), self._budgets(schedule)))
        self.training.publish()
        updated = time.perf_counter()
        state.stream = self._merged(stream)
        if reference is not None and self.ranks.is_main:
            pair = {"with the adapter": state.stream, "without it": reference}
            states = {name: each.state_dict() for name, each in pair.items()}
            (self.output / ACCEPTANCES).write_text(json.dumps(states), encoding="utf-8")
        observe(self.policy, state.stream, name=config.policy.type, where=f"step {step}")
        state.policy_version += config.distill.updates
        state.step += 1
        state.generated_tokens += steps[0].tokens
        metrics |= update_metrics(steps) | mismatch_metrics(state.stream) | stream_metrics(state.stream, "adapter")
        metrics |= self._evaluate(schedule)
        times = {
            "rollout": rolled - started,
            "teacher": taught - rolled,
            "reference": compared - taught,
            "distill": updated - compared,
            "step": updated - started,
        }
        metrics |= {f"time/{name}_s": seconds for name, seconds in times.items()}
        metrics["time/evaluate_s"] = time.perf_counter() - updated
        metrics["time/distill_share"] = times["distill"] / times["step"]
        metrics["rollout/tokens_per_second"] = steps[0].tokens / max(times["rollout"], 1e-9)
        metrics["rollout/total_tokens"] = float(state.generated_tokens)
        metrics["data/epoch"] = state.order.epoch + state.order.position / state.order.length
        return StepRecord(step, version, metrics, bin_records(state.stream, schedule))

    def _traces(
        self,
        source: TraceSource,
        indices: Sequence[int],
        step: int,
        on_step: Callable[[EngineStats], None] | None = None,
    ) -> list[Trace]:
        """This rank's traces; an error that the user can mend is raised on every rank, so that none is left waiting."""
        error, traces = None, []
        try:
            version = self.state.policy_version
            traces = source.traces(indices, self.policy, step=step, version=version, on_step=on_step)
        except InputError as problem:
            error = str(problem)
        self.ranks.check_all(error)
        return traces

    def _budgets(self, schedule: BudgetSchedule) -> BudgetSchedule | None:
        """What to train under: None for the budgets of the traces."""
        traces = self.config.traces
        return schedule if traces is not None and traces.budgets == "policy" else None

    def _reference(
        self, samples: Sequence[StudentSample], step: int, schedule: BudgetSchedule
    ) -> tuple[dict[str, float], MismatchStream | None]:
        """``reference/...`` and its stream when due: this step's tokens without the adapter; the policy is told."""
        every = self.config.distill.reference_every
        if not every or step % every:
            return {}, None
        stream = self._new_stream()
        forward_kl = self.training.observe(samples, stream, self._budgets(schedule), with_adapter=False)
        merged = self._merged(stream)
        observe_reference(self.policy, merged)
        return stream_metrics(merged, "reference", forward_kl), merged

    def _evaluate(self, schedule: BudgetSchedule) -> dict[str, float]:
        """``eval_adapter/...`` and ``eval_reference/...`` on held-out samples when it is due; nothing observes them."""
        settings, held_out = self.config.evaluate, self._held_out
        if held_out is None or self.state.step % settings.every:
            return {}
        traces = self._traces(held_out, range(min(settings.num_prompts, len(held_out))), _EVALUATION_STEP)
        samples = ask_teacher(self.training.model, traces, self.config.distill)
        metrics: dict[str, float] = {}
        for name, with_adapter in (("adapter", True), ("reference", False)):
            stream = self._new_stream()
            forward_kl = self.training.observe(samples, stream, self._budgets(schedule), with_adapter=with_adapter)
            metrics |= stream_metrics(self._merged(stream), f"eval_{name}", forward_kl)
        return metrics

    def _new_stream(self) -> MismatchStream:
        mismatch = self.config.mismatch
        return MismatchStream(bin_tokens=mismatch.bin_tokens, num_bins=mismatch.num_bins, quantile=mismatch.quantile)

    def _merged(self, stream: MismatchStream) -> MismatchStream:
        return merged_stream(self.ranks.gather(stream.state_dict()))


def _info(config: DistillRunConfig, model: LanguageModel) -> RunInfo:
    names = [entry.loss.type for entry in config.distill.losses]
    return RunInfo(
        model=model.name,
        policy=config.policy.type,
        tau=config.mismatch.tau,
        quantile=config.mismatch.quantile,
        bin_tokens=config.mismatch.bin_tokens,
        selector=config.attention.selector.type,
        objective=f"distill {', '.join(names)}",
    )
