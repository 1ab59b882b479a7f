"""The adapter: off it is not there, on it adds B A, merged it is the same model, and bad ones are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError

from sparrow_core.errors import InputError
from sparrow_core.model import LanguageModel
from sparrow_core.model.build import store_column_major
from sparrow_core.model.export import hf_state_dict
from sparrow_trainers.distill.adapter import TARGETS, AdapterConfig, LoraAdapter
from sparrow_trainers.distill.merge import merged_model, refresh_merged
from tests.distill.helpers import logits_of, small_model, tokens_of, trained_adapter

KINDS = pytest.mark.parametrize("model_type", ["llama", "qwen3"])


@KINDS
def test_with_b_zero_the_adapter_changes_no_logit(model_type: str) -> None:
    model = small_model(model_type)
    tokens_BL = tokens_of(model)
    plain = logits_of(model, tokens_BL)
    with LoraAdapter(model, AdapterConfig(rank=32)).active(model):
        assert torch.equal(logits_of(model, tokens_BL), plain)


@KINDS
def test_an_active_adapter_adds_its_update_to_every_target(model_type: str) -> None:
    model = small_model(model_type)
    adapter = trained_adapter(model)
    tokens_BL = tokens_of(model)
    with adapter.active(model):
        adapted = logits_of(model, tokens_BL)
    by_hand = small_model(model_type)
    with torch.no_grad():
        for layer, name, update in adapter.items():
            linear = by_hand.module.layers[str(layer)].get_submodule(TARGETS[name].ours)
            linear.weight += 2.0 * update.lora_B @ update.lora_A
    assert (adapted - logits_of(model, tokens_BL)).abs().max() > 0.1
    torch.testing.assert_close(adapted, logits_of(by_hand, tokens_BL), rtol=1e-4, atol=1e-4)


def test_the_dense_policy_is_the_same_with_and_without_an_adapter() -> None:
    """Weights, names, log-probs and gradients, bit for bit, with an adapter made, used and trained in between."""
    plain, with_adapter = small_model(), small_model()
    adapter = trained_adapter(with_adapter)
    _student_step(with_adapter, adapter)
    tokens_BL = tokens_of(plain)
    for model in (plain, with_adapter):
        model.module.requires_grad_(True)
        torch.log_softmax(model.logits(model.hidden(tokens_BL)), -1)[..., 3].sum().backward()
    assert torch.equal(logits_of(plain, tokens_BL), logits_of(with_adapter, tokens_BL))
    ours, theirs = dict(with_adapter.module.named_parameters()), dict(plain.module.named_parameters())
    assert ours.keys() == theirs.keys()
    assert hf_state_dict(with_adapter).keys() == hf_state_dict(plain).keys()
    for name, parameter in theirs.items():
        assert torch.equal(ours[name], parameter), name
        assert parameter.grad is not None
        assert torch.equal(ours[name].grad, parameter.grad), name


def _student_step(model: LanguageModel, adapter: LoraAdapter) -> None:
    before = [p.detach().clone() for p in adapter.parameters()]
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=1e-2)
    with adapter.active(model):
        model.logits(model.hidden(tokens_of(model, seed=5))).square().mean().backward()
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, adapter.parameters(), strict=True))


def test_leaving_the_block_by_an_error_switches_the_adapter_off() -> None:
    model = small_model()
    adapter, tokens_BL = trained_adapter(model), tokens_of(model)
    plain = logits_of(model, tokens_BL)
    with pytest.raises(RuntimeError, match="stop"), adapter.active(model):
        raise RuntimeError("stop")
    assert torch.equal(logits_of(model, tokens_BL), plain)
    with adapter.active(model):
        assert not torch.equal(logits_of(model, tokens_BL), plain)


@KINDS
def test_merging_gives_the_adapted_model_and_leaves_the_policy_alone(model_type: str) -> None:
    model = small_model(model_type, tie_word_embeddings=True)
    adapter = trained_adapter(model, target_modules=("q_proj", "down_proj"))
    tokens_BL = tokens_of(model)
    before = {name: weight.clone() for name, weight in hf_state_dict(model).items()}
    merged = merged_model(model, adapter)
    with adapter.active(model):
        torch.testing.assert_close(logits_of(merged, tokens_BL), logits_of(model, tokens_BL), rtol=1e-4, atol=1e-4)
    shared = 0
    for name, weight in hf_state_dict(model).items():
        assert torch.equal(weight, before[name])
        changed = "q_proj" in name or "down_proj" in name
        assert (hf_state_dict(merged)[name].data_ptr() == weight.data_ptr()) is not changed
        shared += not changed
    assert shared > 0


def test_refreshing_a_merged_copy_follows_policy_and_adapter_in_place() -> None:
    model = small_model()
    adapter, tokens_BL = trained_adapter(model), tokens_of(model)
    merged = merged_model(model, adapter)
    places = [p.data_ptr() for p in merged.module.parameters()]
    with torch.no_grad():
        for parameter in (*adapter.parameters(), *model.module.parameters()):
            parameter.mul_(1.1)
    refresh_merged(merged, model, adapter)
    assert [p.data_ptr() for p in merged.module.parameters()] == places
    assert torch.equal(logits_of(merged, tokens_BL), logits_of(merged_model(model, adapter), tokens_BL))


def test_the_initial_adapter_depends_on_the_seed_alone() -> None:
    model = small_model()
    first, again, other = (LoraAdapter(model, AdapterConfig(rank=2, seed=seed)) for seed in (0, 0, 1))
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.abs().max() == 0 or not torch.equal(a, c)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rank": 0}, "rank.*at least 1"),
        ({"rank": -4}, "rank.*at least 1"),
        ({"target_modules": ["q_proj", "wq"]}, "'wq'.*q_proj, k_proj.*down_proj"),
        ({"target_modules": []}, "at least one module"),
        ({"alpha": 0}, "alpha"),
    ],
)
def test_bad_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){message}"):
        AdapterConfig(**values)  # type: ignore[arg-type]


OTHERS: dict[str, Callable[[], LanguageModel]] = {
    "another kind": lambda: small_model("qwen3"),
    "another depth": lambda: small_model(num_hidden_layers=2),
    "another width": lambda: small_model(intermediate_size=80),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_an_adapter_of_another_model_is_refused(name: str) -> None:
    other = OTHERS[name]()
    adapter = trained_adapter(small_model())
    for use in (lambda: adapter.active(other).__enter__(), lambda: merged_model(other, adapter)):
        with pytest.raises(InputError, match="give the model it was trained on"):
            use()


def test_a_model_laid_out_for_decoding_is_refused() -> None:
    model = small_model()
    adapter = trained_adapter(model)
    store_column_major(model.module)
    with pytest.raises(InputError, match="fused"):
        adapter.active(model).__enter__()
