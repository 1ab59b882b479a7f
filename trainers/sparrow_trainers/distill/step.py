"""One distillation step: the adapter follows the dense policy and, by its own policy term, the reward.

The dense weights are constants here: they get no gradient, whatever their ``requires_grad`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow_core.contracts import PageSelector, SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchError, MismatchStream, TokenMismatch
from sparrow_core.model import LanguageModel
from sparrow_core.schedule import BudgetSchedule
from sparrow_core.sparse_training import SparseTrainingSession, pack_traces
from sparrow_core.train_contracts import Reduce
from sparrow_trainers.distill.adapter import LoraAdapter
from sparrow_trainers.distill.config import AdapterOptimizerConfig, DistillConfig
from sparrow_trainers.distill.teacher import StudentSample, drawn_rows, packs_of
from sparrow_trainers.distill.token_losses import Acceptances, Term, build_terms, token_losses


@dataclass(frozen=True, slots=True, eq=False)
class Student:
    """The sparse policy: dense weights, the adapter, and how pages are chosen."""

    model: LanguageModel
    adapter: LoraAdapter
    selector: PageSelector
    layout: SparseLayout
    schedule: BudgetSchedule | None = None
    """Budgets to train under; None takes those that the traces recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class DistillMetrics:
    """Means over all tokens of the step, over all ranks; the mismatch is this rank's."""

    loss: float
    """The weighted terms."""
    means: dict[str, float]
    """Per token: every term unweighted, ``forward_kl`` always, ``rollout_logp_gap`` (how far the recomputed sparse
    log-probs are from the rollout's) and, with the policy term, ``sparse_ppo`` and its clipped share."""
    tokens: int
    grad_norm: float
    mismatch: MismatchStream
    """Acceptance of the student before the step against the teacher, by length bin."""


def adapter_optimizer(adapter: LoraAdapter, config: AdapterOptimizerConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        adapter.parameters(), lr=config.lr, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay
    )


def distill_step(
    student: Student,
    samples: Sequence[StudentSample],
    config: DistillConfig,
    optimizer: torch.optim.Optimizer,
    *,
    mismatch: MismatchStream,
    reduce: Reduce = lambda total: total,
) -> DistillMetrics:
    """Update the adapter once on all samples of all ranks.

    The loss is a mean over all tokens, so micro-batches and ranks change nothing but the order of sums.

    Args:
        samples: of this rank; ``ask_teacher`` makes them.
        mismatch: an empty stream, whose bins the metrics take.

    Raises InputError when a sample lacks what the config needs, MismatchError when a loss or gradient is not finite;
    in both cases the adapter is unchanged.
    """
    _check(samples, config)
    optimizer.zero_grad(set_to_none=True)
    sums = gradients(student, samples, config, mismatch=mismatch, reduce=reduce)
    grad_norm = torch.nn.utils.clip_grad_norm_(student.adapter.parameters(), config.optimizer.max_grad_norm)
    if not bool(grad_norm.isfinite()):
        optimizer.zero_grad(set_to_none=True)
        raise MismatchError(f"the adapter's gradient norm is {float(grad_norm)}; the step was not taken")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    tokens = sums.pop("tokens")
    means = {name: total / tokens for name, total in sorted(sums.items())}
    return DistillMetrics(means.pop("loss"), means, int(tokens), float(grad_norm), mismatch)


def gradients(
    student: Student,
    samples: Sequence[StudentSample],
    config: DistillConfig,
    *,
    mismatch: MismatchStream,
    reduce: Reduce,
) -> dict[str, float]:
    """Set the adapter's gradients, summed over ranks; the sums of every statistic over all tokens and ranks."""
    device = student.model.device
    mine = float(sum(len(sample.trace.token_ids) for sample in samples))
    tokens = float(reduce(torch.tensor([mine], dtype=torch.float64, device=device))[0])
    terms = build_terms(config)
    names = _statistics(terms, config)
    sums = dict.fromkeys(names, 0.0)
    for parameter in student.adapter.parameters():
        parameter.grad = torch.zeros_like(parameter)
    failure: MismatchError | None = None
    try:
        for pack in packs_of([sample.trace for sample in samples], config.micro_batch_tokens):
            _micro_batch(student, [samples[i] for i in pack], config, terms, tokens, sums, mismatch)
    except MismatchError as error:
        failure = error
    # A rank that fails still takes part in the sums, so that no other waits for it.
    _sum_over_ranks(student.adapter, reduce)
    counted = [float(failure is not None), *(sums[name] for name in names)]
    failed, *totals = reduce(torch.tensor(counted, dtype=torch.float64, device=device)).tolist()
    if failed:
        for parameter in student.adapter.parameters():
            parameter.grad = None
        raise failure or MismatchError("the distillation loss of another rank's sample is not finite")
    return dict(zip(names, totals, strict=True)) | {"tokens": tokens}


def _sum_over_ranks(adapter: LoraAdapter, reduce: Reduce) -> None:
    parameters = list(adapter.parameters())
    grads = [parameter.grad for parameter in parameters]
    flat = reduce(torch.cat([grad.flatten() for grad in grads if grad is not None]).double())
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.dtype)


def _micro_batch(
    student: Student,
    samples: list[StudentSample],
    config: DistillConfig,
    terms: list[Term],
    tokens: float,
    sums: dict[str, float],
    mismatch: MismatchStream,
) -> None:
    """Add the gradients of one pack. Logits exist for one chunk of tokens at a time."""
    model, adapter = student.model, student.adapter
    traces = [sample.trace for sample in samples]
    tokens_1T, packed = pack_traces(traces, student.schedule, model.device)
    session = SparseTrainingSession(packed, student.selector, student.layout, device=model.device)
    with adapter.active(model), model.bind(session):
        hidden_TD = model.hidden(tokens_1T, documents=packed.documents)[0]
        leaf_TD = hidden_TD.detach().requires_grad_(True)
        for sample, rows in zip(samples, drawn_rows(traces, packed.documents.offsets), strict=True):
            accepted = []
            for start in range(rows.start, rows.stop, config.logit_chunk):
                end = min(start + config.logit_chunk, rows.stop)
                chunk = slice(start - rows.start, end - rows.start)
                part = token_losses(model, leaf_TD[start:end], sample, chunk, terms, config)
                if not bool(part.loss.isfinite()):
                    raise MismatchError(f"the distillation loss of {sample.trace.key} is {float(part.loss.detach())}")
                (part.loss / tokens).backward(inputs=[leaf_TD])  # type: ignore[no-untyped-call]
                for name, value in part.sums.items():
                    sums[name] += value
                sums["loss"] += float(part.loss.detach())
                assert part.acceptances is not None
                accepted.append(part.acceptances)
            mismatch.observe(token_mismatch(student, sample, accepted))
        hidden_TD.backward(leaf_TD.grad, inputs=list(adapter.parameters()))  # type: ignore[no-untyped-call]


def token_mismatch(student: Student, sample: StudentSample, parts: list[Acceptances]) -> TokenMismatch:
    """The acceptances of a sample's tokens with the budgets that the student had for them."""
    trace, size = sample.trace, student.layout.page_size
    lengths_T, pages_T = trace.lengths, trace.pages
    num_pages_T = (lengths_T + size - 1) // size
    if student.schedule is not None:
        pages_T = torch.minimum(student.schedule.pages_at(lengths_T), num_pages_T)
        pages_T[0] = num_pages_T[0]
    exact = [part.exact for part in parts if part.exact is not None]
    return TokenMismatch(
        lengths_T=lengths_T,
        lower_T=torch.cat([part.lower for part in parts]),
        upper_T=torch.cat([part.upper for part in parts]),
        pages_T=pages_T,
        attended_T=lengths_T - (num_pages_T - pages_T).clamp(min=0) * size,
        exact_T=torch.cat(exact) if exact else None,
    )


def _statistics(terms: list[Term], config: DistillConfig) -> list[str]:
    """Every name that a step sums, the same on all ranks."""
    names = {"loss", "forward_kl", "rollout_logp_gap", *(term.name for term in terms)}
    if config.sparse_ppo.weight > 0:
        names |= {"sparse_ppo", "sparse_ppo_clipped"}
    return sorted(names)


def _check(samples: Sequence[StudentSample], config: DistillConfig) -> None:
    for sample in samples:
        if config.support == "topk" and sample.trace.topk_ids.shape[1] == 0:
            raise InputError(
                f"distill.support=topk needs the top-K ids of {sample.trace.key}, but its trace has none; record "
                "traces with rollout.topk_logprobs=20, or take distill.support=exact"
            )
        if config.support == "exact" and sample.teacher_hidden_TD is None:
            raise InputError(
                f"distill.support=exact needs the dense hidden states of {sample.trace.key}; "
                "ask the teacher for them or take distill.support=topk"
            )
        if config.sparse_ppo.weight > 0 and sample.advantage is None:
            raise InputError(
                f"distill.sparse_ppo.weight={config.sparse_ppo.weight} needs an advantage for {sample.trace.key}; "
                "give advantages or set distill.sparse_ppo.weight=0"
            )
