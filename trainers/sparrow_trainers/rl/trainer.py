"""The RL loop: sample sparsely, recompute densely, reward, let the sparsity policy observe, update the weights."""

from __future__ import annotations

import logging
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
from sparrow_core.trace import SampleKey
from sparrow_core.train_contracts import Completion
from sparrow_core.train_log import RunInfo, StepRecord, bin_records
from sparrow_trainers.config import TrainConfig
from sparrow_trainers.data.prompt_set import PromptSet
from sparrow_trainers.distill.rollout_distillation import RolloutDistillation
from sparrow_trainers.objectives.dynamic_sampling import DynamicSampling
from sparrow_trainers.objectives.objective import build_objective
from sparrow_trainers.rewards.pool import RewardPool
from sparrow_trainers.rl.collect import Collected, Collector, Prompt, Timings, merged_stream
from sparrow_trainers.rl.evaluate import Evaluator
from sparrow_trainers.rl.groups import GroupCollection
from sparrow_trainers.rl.metrics import (
    StepTimes,
    drift_metrics,
    mismatch_metrics,
    response_metrics,
    time_metrics,
    update_metrics,
)
from sparrow_trainers.rl.sample import Sample, response_batch
from sparrow_trainers.rl.signals import stop_after_step
from sparrow_trainers.rl.state import RunState
from sparrow_trainers.rl.update import UpdateSettings, same_everywhere, update
from sparrow_trainers.run_log import RunLog, SampleText, TrainProgress
from sparrow_trainers.titan.checkpoints import Checkpoints
from sparrow_trainers.titan.learner import Learner, frozen_copy
from sparrow_trainers.titan.ranks import Ranks

_logger = logging.getLogger(__name__)
_CLIPPED_SHARE = 0.5


class Trainer:
    """One run on this rank. Every rank makes the same calls.

    Args:
        model: whole weights on this rank's device; the learner takes them over.
        prompts: the training prompts; evaluation prompts likewise.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: LanguageModel,
        prompts: PromptSet,
        eval_prompts: PromptSet | None,
        ranks: Ranks,
        rewards: RewardPool,
        console: Console | None,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.prompts = prompts
        self.objective = build_objective(config.objective)
        train = config.train
        reference = frozen_copy(model) if self.objective.needs_reference else None
        self.learner = Learner(
            model,
            ranks,
            config.memory,
            config.optimizer,
            total_updates=train.steps * train.epochs * train.minibatches,
        )
        self.policy = build_policy(config.policy, config.attention.layout)
        self.distillation = (
            None
            if config.distill is None
            else RolloutDistillation(self.learner.policy, config.attention, config.distill, ranks)
        )
        self.collector = Collector(
            self.learner.policy,
            config.attention,
            config.rollout,
            config.mismatch,
            rewards,
            recompute_tokens=train.recompute_tokens,
            reference=reference,
            releases_cache=config.memory.release_cache,
            rollout_model=None if self.distillation is None else self.distillation.training.rollout_model,
        )
        self.state = RunState(model.name, self.policy, prompts.order(), self.collector.new_stream())
        self.output = Path(config.output)
        self.checkpoints = Checkpoints(
            self.output,
            config.checkpoint,
            ranks,
            self.state,
            learner=self.learner,
            adapter=None if self.distillation is None else self.distillation.training,
        )
        self.progress = TrainProgress(console if ranks.is_main else None)
        self._console = console if ranks.is_main else None
        self.evaluator = Evaluator(config, self.collector, self.policy, eval_prompts, ranks)
        self._seen: list[tuple[Sample, Completion, float | None]] = []
        """This rank's samples of the step, for sample texts."""
        self._advantages: dict[SampleKey, float] = {}
        """Of the step's samples that the update took."""
        self._warned = False

    def run(self) -> StepRecord | None:
        """Train up to ``train.steps``, from the latest checkpoint where there is one; the last step's record.

        Raises KeyboardInterrupt after a Ctrl-C, once the step is done and saved.
        """
        if self.checkpoints.load() is not None:
            self.learner.publish()
            if self.distillation is not None:
                self.distillation.training.publish()
        config, state = self.config, self.state
        record: StepRecord | None = None
        log = RunLog(
            self.output,
            config.log,
            _info(config, self.learner.policy),
            start_step=state.step,
            rank=self.ranks.rank,
            settings=config.model_dump(mode="json"),
        )
        with log, stop_after_step(self._say) as wants_stop:
            with self.progress.steps(config.train.steps, state.step) as done:
                while state.step < config.train.steps:
                    self._seen.clear()
                    self._advantages.clear()
                    record = self._step()
                    self._warn_if_clipped(record)
                    log.write(record)
                    log.write_samples(record.step, len(self._seen), lambda index: _sample_text(*self._seen[index]))
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

    def _warn_if_clipped(self, record: StepRecord) -> None:
        """Say it once when most responses are cut: their reward is then mostly about length."""
        share = record.metrics["response/clipped_share"]
        if share > _CLIPPED_SHARE and not self._warned and self.ranks.is_main:
            self._warned = True
            _logger.warning(
                "step %d: %.0f%% of the responses were cut by rollout.max_tokens=%d or the context; raise "
                "rollout.max_tokens if they should end by themselves",
                *(record.step, 100 * share, self.config.rollout.max_tokens),
            )

    def _step(self) -> StepRecord:
        config, state, step = self.config, self.state, self.state.step
        started = time.perf_counter()
        evaluation = self.evaluator.evaluate(step) if self.evaluator.is_due(step) else {}
        begun = time.perf_counter()
        stream, timings = self.collector.new_stream(), Timings()
        schedule, version = self.policy.schedule(), state.policy_version
        with self.progress.rollout(step) as on_step:
            groups = self._collect(stream, timings, on_step)
        streams = self.ranks.gather(stream.state_dict())
        all_timings = self.ranks.gather(timings)
        state.stream = merged_stream(streams)
        compared: dict[str, float] = {}
        if self.distillation is not None:
            compared = self.distillation.reference(self.collector.new_stream(), step, self.policy)
        observe(self.policy, state.stream, name=config.policy.type, where=f"step {step}")
        collected = time.perf_counter()
        metrics = response_metrics(groups.drawn) | drift_metrics(groups.drawn) | mismatch_metrics(state.stream)
        metrics |= groups.metrics()
        if groups.kept:
            metrics |= self._update(groups.kept, step)
            state.policy_version += 1
        finished = time.perf_counter()
        if self.distillation is not None:
            compared |= self.distillation.train(self.collector.new_stream, self._advantages)
        distilled = time.perf_counter()
        state.step += 1
        state.generated_tokens += sum(each.generated_tokens for each in all_timings)
        times = _times(all_timings, update=finished - collected, total=distilled - begun)
        metrics |= time_metrics(times, all_timings) | evaluation
        if self.distillation is not None:
            metrics |= compared
            metrics["time/distill_s"] = distilled - finished
            metrics["time/distill_share"] = (distilled - finished) / times.total
        metrics["time/evaluate_s"] = begun - started
        metrics["data/epoch"] = state.order.epoch + state.order.position / state.order.length
        metrics["rollout/total_tokens"] = float(state.generated_tokens)
        return StepRecord(step, version, metrics, bin_records(state.stream, schedule))

    def _collect(
        self, stream: MismatchStream, timings: Timings, on_step: Callable[[EngineStats], None]
    ) -> GroupCollection:
        """Sample groups on all ranks until there are enough; every rank gets all samples."""
        config, state = self.config, self.state
        groups = GroupCollection(DynamicSampling(config.objective.dynamic_sampling, config.train.prompts_per_step))
        while groups.wanted:
            indices = state.order.take(groups.wanted)
            numbered = list(enumerate(indices, start=groups.num_drawn))
            mine = numbered[self.ranks.rank :: self.ranks.world]
            error, collected = self._sample(mine, stream, timings, on_step)
            self.ranks.check_all(error)
            everyone = [sample for part in self.ranks.gather(collected.samples) for sample in part]
            groups.add(sorted(everyone, key=lambda sample: sample.key))
            if self.distillation is not None:
                self.distillation.take(collected.students)
            self._seen.extend(zip(collected.samples, collected.texts, collected.tails, strict=True))
        return groups

    def _update(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        config, train = self.config, self.config.train
        prepared = self.objective.prepare(response_batch(samples, config.rollout.max_tokens), same_everywhere)
        advantages = prepared.advantage_S.tolist()
        self._advantages.update(zip((sample.key for sample in samples), advantages, strict=True))
        self.checkpoints.before_update()
        settings = UpdateSettings(
            minibatches=train.minibatches,
            epochs=train.epochs,
            micro_batch_tokens=train.micro_batch_tokens,
            temperature=config.rollout.temperature,
            seed=config.rollout.seed + step,
        )
        learning_rate = self.learner.learning_rate
        result = update(self.learner, self.objective, prepared, samples, settings)
        self.learner.publish()
        return prepared.metrics | update_metrics(result, learning_rate)

    def _sample(
        self,
        numbered: Sequence[tuple[int, int]],
        stream: MismatchStream,
        timings: Timings,
        on_step: Callable[[EngineStats], None],
    ) -> tuple[str | None, Collected]:
        """This rank's groups; an error that the user can mend comes back as text, so that no rank is left waiting."""
        state = self.state
        try:
            prompts = [_prompt(group, self.prompts, index) for group, index in numbered]
            collected = self.collector.collect(
                prompts,
                self.policy,
                stream,
                timings,
                step=state.step,
                policy_version=state.policy_version,
                on_step=on_step,
            )
        except InputError as error:
            return str(error), Collected()
        return None, collected


def _prompt(group: int, prompts: PromptSet, index: int) -> Prompt:
    encoded = prompts[index]
    return Prompt(group, encoded.token_ids, encoded.example, encoded.text)


def _times(timings: Sequence[Timings], *, update: float, total: float) -> StepTimes:
    return StepTimes(
        rollout=max(each.rollout for each in timings),
        recompute=max(each.recompute for each in timings),
        reward=max(each.reward for each in timings),
        update=update,
        total=total,
    )


def _sample_text(sample: Sample, text: Completion, tail: float | None) -> SampleText:
    parts = [f"{name} {value:.4g}" for name, value in sample.reward_parts.items()]
    if sample.reward_error is not None:
        parts.append(f"failed: {sample.reward_error}")
    return SampleText(
        prompt_id=text.prompt_id,
        prompt=text.prompt,
        completion=text.text,
        reward=sample.reward,
        finish_reason=sample.finish_reason,
        num_tokens=text.num_tokens,
        tail=tail,
        note=", ".join(parts),
    )


def _info(config: TrainConfig, model: LanguageModel) -> RunInfo:
    return RunInfo(
        model=model.name,
        policy=config.policy.type,
        tau=config.mismatch.tau,
        quantile=config.mismatch.quantile,
        bin_tokens=config.mismatch.bin_tokens,
        selector=config.attention.selector.type,
        objective=config.objective.name,
    )
