"""Packed documents, sessions and gradients of the model's attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_helpers import all_logits, random_tokens, small_config

from sparrow_core.errors import InputError
from sparrow_core.model import PackedDocuments, SparrowAttention, build_random, load_model


def _packed(lengths: list[int]) -> PackedDocuments:
    return PackedDocuments(torch.tensor([0, *lengths]).cumsum(0).to(torch.int32))


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6), model_type=st.sampled_from(["llama", "qwen3"]))
def test_packed_equals_separate(lengths: list[int], model_type: str) -> None:
    model = build_random(small_config(model_type), seed=1)
    tokens = random_tokens(model, sum(lengths))
    packed = all_logits(model, tokens, documents=_packed(lengths))
    for part, document in zip(packed.split(lengths, dim=1), tokens.split(lengths, dim=1), strict=True):
        torch.testing.assert_close(part, all_logits(model, document), atol=1e-4, rtol=0)


def test_gradients_of_packed_documents_equal_the_sum_of_separate_ones() -> None:
    lengths = [3, 17, 1, 9]
    model = build_random(small_config("qwen3"), seed=2)
    weight = model.module.layers["0"].attention.qkv_linear.wk.weight.requires_grad_()
    tokens = random_tokens(model, sum(lengths))
    model.logits(model.hidden(tokens, documents=_packed(lengths))).square().sum().backward()
    packed, weight.grad = weight.grad, None
    for document in tokens.split(lengths, dim=1):
        model.logits(model.hidden(document)).square().sum().backward()
    assert packed.abs().max() > 0
    torch.testing.assert_close(packed, weight.grad, atol=1e-3, rtol=1e-3)


def test_later_tokens_change_nothing_before_them() -> None:
    model = build_random(small_config(), seed=3)
    tokens = random_tokens(model, 24)
    changed = tokens.clone()
    changed[0, 15:] = (changed[0, 15:] + 1) % model.vocab_size
    assert torch.equal(all_logits(model, tokens)[:, :15], all_logits(model, changed)[:, :15])


def test_attention_equals_its_formula() -> None:
    q, k, v = (
        torch.randn(2, 7, heads, 8, generator=torch.Generator().manual_seed(s)) for s, heads in enumerate((6, 2, 2))
    )
    out = SparrowAttention.Config(layer_id=0).build()(q, k, v, scale=0.3, enable_gqa=True)
    k, v = (x.repeat_interleave(3, dim=2) for x in (k, v))
    scores = torch.einsum("blnh,bmnh->bnlm", q, k) * 0.3
    scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(out, torch.einsum("bnlm,bmnh->blnh", scores.softmax(-1), v), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("offsets", [[0], [1, 4], [0, 4, 4], [0, 4, 2]], ids=str)
def test_bad_offsets_are_refused(offsets: list[int]) -> None:
    with pytest.raises(InputError, match="must start at 0 and ascend"):
        PackedDocuments(torch.tensor(offsets, dtype=torch.int32))


def test_offsets_that_do_not_cover_the_tokens_are_refused() -> None:
    model = build_random(small_config(), seed=0)
    tokens, positions = random_tokens(model, 10), torch.arange(10)[None]
    with pytest.raises(InputError, match="ends at 9 but there are 10 tokens"):
        model.hidden(tokens, positions, _packed([4, 5]))


class _Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[int, tuple[int, ...], tuple[int, ...], float]] = []

    def attend(
        self, layer: int, q_BLNH: torch.Tensor, k_BLNH: torch.Tensor, v_BLNH: torch.Tensor, scale: float
    ) -> torch.Tensor:
        assert k_BLNH.shape == v_BLNH.shape
        self.calls.append((layer, tuple(q_BLNH.shape), tuple(k_BLNH.shape), scale))
        return q_BLNH


def test_a_bound_session_does_the_attention_of_every_layer(checkpoint: Callable[..., Path]) -> None:
    model = load_model(checkpoint(num_hidden_layers=3))
    tokens, positions = random_tokens(model, 1, batch=5), torch.arange(5)[:, None]
    before, session = all_logits(model, tokens), _Recorder()
    with model.bind(session), model.bind(None):
        assert torch.equal(all_logits(model, tokens), before)
    assert not session.calls
    with model.bind(session):
        during = all_logits(model, tokens, positions_BL=positions)
    assert session.calls == [(layer, (5, 1, 4, 16), (5, 1, 2, 16), 0.25) for layer in range(3)]
    assert not torch.equal(during, before)
    assert torch.equal(all_logits(model, tokens), before)


def test_a_session_is_unbound_when_the_block_raises() -> None:
    model = build_random(small_config(), seed=0)
    with pytest.raises(RuntimeError, match="stop"), model.bind(_Recorder()):
        raise RuntimeError("stop")
    assert all(layer.attention.inner_attention.session is None for layer in model.module.layers.values())


def test_tokens_beyond_the_context_are_refused_with_both_numbers() -> None:
    model = build_random(small_config(max_position_embeddings=16), seed=0)
    assert model.hidden(random_tokens(model, 16)).shape == (1, 16, 64)
    with pytest.raises(InputError, match="17 tokens are more than random's context of 16"):
        model.hidden(random_tokens(model, 17))
