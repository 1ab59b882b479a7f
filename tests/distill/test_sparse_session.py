"""The sparse student in training reproduces the rollout: log-probs, page sets, and gradients of its own definition."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from sparrow_core import registry
from sparrow_core.errors import InputError
from sparrow_core.mismatch import log_softmax_at
from sparrow_core.model import LanguageModel, PackedDocuments
from sparrow_core.sparse_training import SparseTokens, SparseTrainingSession, pack_traces
from sparrow_core.sparse_training.plan import TrainingPlan
from sparrow_core.trace import Trace
from tests.distill.helpers import small_model
from tests.distill.rollouts import Spy, roll_out


def train_forward(
    model: LanguageModel, traces: Sequence[Trace], config: Any, **kwargs: Any
) -> tuple[list[torch.Tensor], Spy]:
    """Log-probs ``[T, V]`` of every trace's drawn tokens by the training forward."""
    selector_class = registry.load("sparrow.selectors", config.attention.selector.type)
    spy = Spy(selector_class(config.attention.selector, config.attention.layout))
    tokens_1T, tokens = pack_traces(traces)
    session = SparseTrainingSession(tokens, spy, config.attention.layout, **kwargs)  # type: ignore[arg-type]
    with model.bind(session):
        hidden_TD = model.hidden(tokens_1T, documents=tokens.documents)[0]
    logp = []
    for trace, (_, end) in zip(traces, itertools.pairwise(tokens.documents.offsets), strict=True):
        logp.append(log_softmax_at(model.logits(hidden_TD[end - len(trace.token_ids) : end]), trace.temperature))
    return logp, spy


def sorted_pages(spy: Spy) -> dict[Any, list[Any]]:
    return {key: sorted(pages) for key, pages in spy.seen.items()}


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("selector", ["mean_landmark", "quest"])
def test_log_probs_and_page_sets_are_those_of_the_rollout(model_type: str, selector: str) -> None:
    model = small_model(model_type)
    traces, rollout_spy, config = roll_out(
        model, [3, 8, 21, 50], f"attention.selector={selector}", "rollout.temperature=0.8"
    )
    with torch.no_grad():
        logp, spy = train_forward(model, traces, config)
    sparse_tokens = 0
    for trace, logp_TV in zip(traces, logp, strict=True):
        drawn_T = logp_TV.gather(-1, trace.token_ids.long()[:, None])[:, 0]
        torch.testing.assert_close(drawn_T, trace.logprobs, rtol=0, atol=1e-4)
        topk_TK = logp_TV.gather(-1, trace.topk_ids.long())
        torch.testing.assert_close(topk_TK, trace.topk_logprobs, rtol=0, atol=1e-4)
        sparse_tokens += int((trace.pages * 4 < trace.lengths).sum())
    assert sparse_tokens > 100
    expected = sorted_pages(rollout_spy)
    assert expected
    assert sorted_pages(spy) == expected


def test_the_sparse_student_is_not_the_dense_model() -> None:
    model = small_model()
    traces, _, config = roll_out(model, [21, 50])
    with torch.no_grad():
        sparse, _ = train_forward(model, traces, config)
        tokens_1T, tokens = pack_traces(traces)
        dense_TV = torch.log_softmax(model.logits(model.hidden(tokens_1T, documents=tokens.documents))[0], -1)
    assert (torch.cat(sparse)[1:40] - dense_TV[21 : 21 + 39]).abs().max() > 0.1


def test_runs_of_queries_change_nothing() -> None:
    model = small_model()
    traces, _, config = roll_out(model, [9, 30])
    results = []
    for max_elements in (1 << 24, 40_000, 1):
        model.module.requires_grad_(True)
        logp, _ = train_forward(model, traces, config, max_elements=max_elements)
        grads = torch.autograd.grad(torch.cat(logp)[:, 7].sum(), list(model.module.parameters()))
        results.append((torch.cat(logp), *grads))
    model.module.requires_grad_(False)
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_packed_sequences_are_as_if_alone() -> None:
    model = small_model()
    traces, _, config = roll_out(model, [9, 30, 5])
    with torch.no_grad():
        together, _ = train_forward(model, traces, config)
        for trace, logp_TV in zip(traces, together, strict=True):
            (alone_TV,), _ = train_forward(model, [trace], config)
            torch.testing.assert_close(logp_TV, alone_TV, rtol=0, atol=1e-4)


def test_a_full_budget_is_the_dense_model() -> None:
    model = small_model()
    traces, _, config = roll_out(model, [9, 30], "policy.pages=1000")
    tokens_1T, tokens = pack_traces(traces)
    selector = registry.load("sparrow.selectors", "mean_landmark")(config.attention.selector, config.attention.layout)
    session = SparseTrainingSession(tokens, selector, config.attention.layout)
    assert session.plan.num_sparse == 0
    with torch.no_grad():
        dense = model.hidden(tokens_1T, documents=tokens.documents)
        with model.bind(session):
            assert torch.equal(model.hidden(tokens_1T, documents=tokens.documents), dense)


def test_gradients_are_those_of_masked_attention_under_the_same_pages() -> None:
    """Against autograd of a dense mask in float64, the page sets held constant."""
    model = small_model()
    traces, _, config = roll_out(model, [9, 30], max_tokens=30)
    layout = config.attention.layout
    _, tokens = pack_traces(traces)
    T = tokens.documents.offsets[-1]
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, T, n, 8, generator=generator, dtype=torch.float64, requires_grad=True) for n in (6, 2, 2))
    spy = Spy(registry.load("sparrow.selectors", "mean_landmark")(config.attention.selector, layout))
    session = SparseTrainingSession(tokens, spy, layout)  # type: ignore[arg-type]
    grad_out = torch.randn(1, T, 6, 8, generator=generator, dtype=torch.float64)
    got = torch.autograd.grad(out := session.attend(2, q, k, v, 0.35), (q, k, v), grad_out)
    mask_KTT = _mask(tokens, spy, layer=2, page_size=4)
    scores = torch.einsum("tkgd,skd->kgts", q[0].unflatten(1, (2, 3)), k[0]) * 0.35
    weights = scores.masked_fill(~mask_KTT[:, None], -torch.inf).softmax(-1)
    expected_out = torch.einsum("kgts,skd->tkgd", weights, v[0]).flatten(1, 2)[None]
    torch.testing.assert_close(out, expected_out)
    for a, b in zip(got, torch.autograd.grad(expected_out, (q, k, v), grad_out), strict=True):
        torch.testing.assert_close(a, b)


def _mask(tokens: SparseTokens, spy: Spy, *, layer: int, page_size: int) -> torch.Tensor:
    """bool ``[K, T, T]`` from what the selector chose; queries come in the order of the packed tokens."""
    T = tokens.documents.offsets[-1]
    mask = torch.zeros(2, T, T, dtype=torch.bool)
    taken: dict[Any, int] = {}
    for start, end in itertools.pairwise(tokens.documents.offsets):
        for t in range(start, end):
            length = t - start + 1
            mask[:, t, start : t + 1] = True
            if int(tokens.budgets_T[t]) * page_size >= length:
                continue
            for head in range(2):
                key = (layer, length, head)
                pages = spy.seen[key][taken.get(key, 0)]
                taken[key] = taken.get(key, 0) + 1
                for position in range(length):
                    mask[head, t, start + position] = position // page_size in pages
    return mask


def test_budgets_that_do_not_fit_are_refused() -> None:
    documents = PackedDocuments(torch.tensor([0, 3], dtype=torch.int32))
    with pytest.raises(InputError, match="one budget per token"):
        SparseTokens(documents, torch.ones(2, dtype=torch.int32))
    with pytest.raises(InputError, match="at least 1 page"):
        SparseTokens(documents, torch.tensor([4, 0, 4], dtype=torch.int32))


def test_the_plan_separates_dense_prefixes_from_sparse_tokens() -> None:
    documents = PackedDocuments(torch.tensor([0, 10, 13], dtype=torch.int32))
    budgets = torch.tensor([99] * 4 + [2] * 6 + [99] * 3, dtype=torch.int32)
    plan = TrainingPlan(SparseTokens(documents, budgets), 4, torch.device("cpu"))
    assert plan.sparse_R.tolist() == [8, 9]
    assert plan.lengths_R.tolist() == [9, 10]
    assert plan.dense_documents.offsets == (0, 8, 11)
    assert plan.num_pages == 4
    assert plan.slot_T.tolist() == [*range(10), 12, 13, 14]


def test_triton_kernels_give_the_same_student_and_gradients() -> None:
    model = small_model(head_dim=16, num_hidden_layers=2, hidden_size=32, num_attention_heads=4)
    traces, _, config = roll_out(model, [9, 25], max_tokens=14)
    model.module.requires_grad_(True)
    results = []
    for kernels in ("gather", "triton"):
        logp, _ = train_forward(model, traces, config, kernels=kernels)
        grads = torch.autograd.grad(torch.cat(logp)[:, 7].sum(), list(model.module.parameters()))
        results.append((torch.cat(logp), *grads))
    model.module.requires_grad_(False)
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_triton_kernels_refuse_a_head_dim_they_do_not_serve() -> None:
    model = small_model()
    traces, _, config = roll_out(model, [30], max_tokens=4)
    with pytest.raises(InputError, match="give kernels=gather"):
        train_forward(model, traces, config, kernels="triton")
