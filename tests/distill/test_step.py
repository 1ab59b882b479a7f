"""One distillation step: what it updates, what it leaves alone, and that its gradients do not depend on the split."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparrow_core import registry
from sparrow_core.errors import InputError
from sparrow_core.measure.score import score_traces
from sparrow_core.mismatch import MismatchError, MismatchStream
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.trace import Trace
from sparrow_trainers.distill.adapter import AdapterConfig, LoraAdapter
from sparrow_trainers.distill.config import DistillConfig
from sparrow_trainers.distill.merge import merged_model
from sparrow_trainers.distill.step import Student, adapter_optimizer, distill_step, gradients
from sparrow_trainers.distill.teacher import StudentSample, ask_teacher
from tests.distill.helpers import small_model, trained_adapter
from tests.distill.rollouts import roll_out


def config(**values: Any) -> DistillConfig:
    return DistillConfig.model_validate({"sparse_ppo": {"weight": 0}, **values})


def stream() -> MismatchStream:
    return MismatchStream(bin_tokens=20, num_bins=4)


def student_of(model: LanguageModel, adapter: LoraAdapter, run: Any, **changes: Any) -> Student:
    selector = registry.load("sparrow.selectors", "mean_landmark")(run.attention.selector, run.attention.layout)
    return Student(model, adapter, selector, run.attention.layout, **changes)


def grads_of(student: Student, samples: list[StudentSample], settings: DistillConfig) -> list[torch.Tensor]:
    gradients(student, samples, settings, mismatch=stream(), reduce=lambda total: total)
    return [p.grad.clone() for p in student.adapter.parameters() if p.grad is not None]


@pytest.fixture(scope="module")
def world() -> tuple[LanguageModel, LoraAdapter, list[Trace], Any]:
    """A model, an adapter, and traces of both together."""
    model = small_model()
    adapter = trained_adapter(model, size=0.02)
    traces, _, run = roll_out(merged_model(model, adapter), [5, 18, 9, 30], "rollout.temperature=0.9", max_tokens=25)
    return model, adapter, traces, run


EVERYTHING: dict[str, Any] = {
    "losses": [{"loss": "forward_kl"}, {"loss": "reverse_kl", "weight": 0.3}, {"loss": "jensen_shannon"}],
    "sparse_ppo": {"weight": 0.5},
}


@pytest.mark.parametrize("support", ["exact", "topk"])
def test_gradients_do_not_depend_on_micro_batches_or_logit_chunks(world: Any, support: str) -> None:
    model, adapter, traces, run = world
    student = student_of(model, adapter, run)
    whole = config(**EVERYTHING, support=support)
    samples = ask_teacher(model, traces, whole, advantages=[1.0, -0.5, 0.3, -2.0])
    expected = grads_of(student, samples, whole)
    for split in ({"micro_batch_tokens": 1}, {"micro_batch_tokens": 60, "logit_chunk": 7}):
        got = grads_of(student, samples, config(**EVERYTHING, support=support, **split))
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert max(float(g.abs().max()) for g in expected) > 1e-3


def test_ranks_give_the_gradients_of_one(world: Any) -> None:
    model, adapter, traces, run = world
    settings = config(**EVERYTHING)
    samples = ask_teacher(model, traces, settings, advantages=[1.0, -0.5, 0.3, -2.0])
    expected = grads_of(student_of(model, adapter, run), samples, settings)
    shares = [samples[:1], samples[1:]]
    ranks = [student_of(small_model(), trained_adapter(small_model(), size=0.02), run) for _ in shares]
    reduce = SumOverThreads(len(shares))
    sums: list[dict[str, float]] = [{}, {}]

    def work(rank: int) -> None:
        sums[rank] = gradients(ranks[rank], shares[rank], settings, mismatch=stream(), reduce=reduce)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sums[0] == sums[1]
    assert sums[0]["tokens"] == sum(len(t.token_ids) for t in traces)
    for rank in ranks:
        for parameter, gradient in zip(rank.adapter.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


class SumOverThreads:
    """All-reduce between threads of one process."""

    def __init__(self, count: int) -> None:
        self.parts: list[torch.Tensor] = []
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(count, timeout=60)

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        with self.lock:
            self.parts.append(part)
        self.barrier.wait()
        total = torch.stack(self.parts).sum(0)
        if self.barrier.wait() == 0:
            self.parts = []
        self.barrier.wait()
        return total


def test_a_step_changes_the_adapter_and_never_the_policy(world: Any) -> None:
    model, _, traces, run = world
    adapter = LoraAdapter(model, AdapterConfig(rank=4))
    student, settings = student_of(model, adapter, run), config()
    before = [p.detach().clone() for p in model.module.parameters()]
    start = [p.detach().clone() for p in adapter.parameters()]
    model.module.requires_grad_(True)
    out = distill_step(
        student,
        ask_teacher(model, traces, settings),
        settings,
        adapter_optimizer(adapter, settings.optimizer),
        mismatch=stream(),
    )
    assert all(p.grad is None and p.requires_grad for p in model.module.parameters())
    model.module.requires_grad_(False)
    assert all(torch.equal(a, b) for a, b in zip(before, model.module.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(start, adapter.parameters(), strict=True))
    assert out.tokens == sum(len(t.token_ids) for t in traces) == out.mismatch.total
    assert out.grad_norm > 0


def test_the_student_is_the_one_that_drew_the_traces(world: Any) -> None:
    """Log-probs recomputed with the adapter switched on are those of the rollout by merged weights."""
    model, _, traces, run = world
    adapter = trained_adapter(model, size=0.02)
    settings = config(**EVERYTHING)
    samples = ask_teacher(model, traces, settings, advantages=[1.0] * len(traces))
    optimizer = adapter_optimizer(adapter, settings.optimizer)
    out = distill_step(student_of(model, adapter, run), samples, settings, optimizer, mismatch=stream())
    assert out.means["rollout_logp_gap"] < 1e-4
    assert out.means["sparse_ppo"] == pytest.approx(-1.0, abs=1e-4)
    assert out.means["sparse_ppo_clipped"] == 0
    assert set(out.means) >= {"forward_kl", "reverse_kl", "jensen_shannon"}


def test_the_acceptance_is_that_of_the_recorded_rollout(world: Any) -> None:
    """With the adapter of the rollout, bounds, exact values and budgets equal those of the dense recompute."""
    model, _, traces, run = world
    adapter = trained_adapter(model, size=0.02)
    expected = stream()
    for trace in score_traces(model, traces):
        expected.observe(trace.mismatch(run.attention.page_size))
    for support in ("exact", "topk"):
        settings = config(support=support)
        optimizer = adapter_optimizer(adapter, settings.optimizer)
        student = student_of(model, trained_adapter(model, size=0.02), run)
        out = distill_step(student, ask_teacher(model, traces, settings), settings, optimizer, mismatch=stream())
        for got, want in zip(out.mismatch.bins(), expected.bins(), strict=True):
            assert got.tokens == want.tokens
            assert got.pages_mean == want.pages_mean
            assert got.kept_fraction == want.kept_fraction
            if want.tokens:
                assert got.tail_lower == pytest.approx(want.tail_lower, abs=1e-3)
                assert got.tail_upper == pytest.approx(want.tail_upper, abs=1e-3)
                assert (got.tail_exact is not None) == (support == "exact")


def test_another_schedule_may_be_trained_under(world: Any) -> None:
    """A full budget makes the student dense: with B = 0 there is nothing left to learn."""
    model, _, traces, run = world
    adapter = LoraAdapter(model, AdapterConfig(rank=4))
    schedule = BudgetSchedule(pages=(100,), page_size=4)
    settings = config()
    optimizer = adapter_optimizer(adapter, settings.optimizer)
    student = student_of(model, adapter, run, schedule=schedule)
    out = distill_step(student, ask_teacher(model, traces, settings), settings, optimizer, mismatch=stream())
    assert abs(out.loss) < 1e-5
    assert out.mismatch.overall().tail_exact == pytest.approx(1.0, abs=1e-3)
    assert out.mismatch.overall().kept_fraction == 1.0


def test_steps_on_recorded_traces_lower_the_kl_and_raise_the_tail_there() -> None:
    model = small_model(initializer_range=0.15)
    adapter = LoraAdapter(model, AdapterConfig(rank=8))
    settings = config(optimizer={"lr": 5e-3})
    optimizer = adapter_optimizer(adapter, settings.optimizer)
    traces, _, run = roll_out(model, [20] * 4, "policy.pages=4", max_tokens=40)
    samples, student = ask_teacher(model, traces, settings), student_of(model, adapter, run)
    steps = [distill_step(student, samples, settings, optimizer, mismatch=stream()) for _ in range(12)]
    tails = [step.mismatch.overall().tail_exact for step in steps]
    assert steps[-1].loss < 0.6 * steps[0].loss
    assert tails[0] is not None
    assert tails[-1] is not None
    assert tails[-1] > tails[0] + 0.02


@pytest.mark.parametrize(
    ("settings", "advantages", "message"),
    [
        ({"sparse_ppo": {"weight": 1.0}}, None, "needs an advantage"),
        ({"support": "exact"}, [1.0] * 4, "needs the dense hidden states"),
    ],
)
def test_samples_that_lack_something_are_refused(
    world: Any, settings: dict[str, Any], advantages: list[float] | None, message: str
) -> None:
    model, adapter, traces, run = world
    asked = config(support="topk")
    samples = ask_teacher(model, traces, asked, advantages=advantages)
    optimizer = adapter_optimizer(adapter, asked.optimizer)
    with pytest.raises(InputError, match=message):
        distill_step(
            student_of(model, adapter, run), samples, config(**{"support": "topk", **settings}), optimizer,
            mismatch=stream(),
        )  # fmt: skip


def test_a_loss_that_is_not_finite_leaves_the_adapter_alone(world: Any) -> None:
    model, _, traces, run = world
    adapter = trained_adapter(model)
    settings = config(support="topk", losses=[{"loss": "reverse_kl"}])
    samples = ask_teacher(model, traces, settings)
    bad = torch.full_like(samples[2].teacher_topk_logp_TK, -torch.inf)  # type: ignore[arg-type]
    samples[2] = replace(samples[2], teacher_topk_logp_TK=bad)
    before = [p.detach().clone() for p in adapter.parameters()]
    optimizer = adapter_optimizer(adapter, settings.optimizer)
    with pytest.raises(MismatchError, match=r"prompt=2.*inf"):
        distill_step(student_of(model, adapter, run), samples, settings, optimizer, mismatch=stream())
    assert all(torch.equal(a, b) for a, b in zip(before, adapter.parameters(), strict=True))
    with adapter.active(model):
        pass


def test_a_teacher_of_other_tokens_is_refused(world: Any) -> None:
    _, _, traces, _ = world
    with pytest.raises(InputError, match="covers 1 tokens"):
        StudentSample(traces[0], teacher_hidden_TD=torch.zeros(1, 48))
    with pytest.raises(InputError, match="no teacher"):
        StudentSample(traces[0])
