"""The sparse student as one set of weights, for rollouts: the policy's weights plus the adapter's update, in a copy."""

from __future__ import annotations

import dataclasses

import torch

from sparrow_core.model import LanguageModel
from sparrow_core.model.build import build_on_meta, fill
from sparrow_core.model.export import hf_state_dict
from sparrow_trainers.distill.adapter import TARGETS, LoraAdapter


def merged_model(model: LanguageModel, adapter: LoraAdapter) -> LanguageModel:
    """A frozen model with the adapter merged; the weights it changes are new, all others share memory with ``model``.

    Sums are float32, rounded to the model's dtype once. Raises InputError when the adapter is of another model.
    """
    adapter.check_fits(model)
    state = {name: weight.detach() for name, weight in hf_state_dict(model).items()}
    for layer, target, merged_OI in _merged_weights(model, adapter):
        state[f"model.layers.{layer}.{TARGETS[target].theirs}.weight"] = merged_OI
    module = build_on_meta(model.spec)
    fill(module, state, model.device)
    return dataclasses.replace(model, module=module, name=f"{model.name} with its adapter")


def refresh_merged(merged: LanguageModel, model: LanguageModel, adapter: LoraAdapter) -> None:
    """Write the present weights of ``model`` and ``adapter`` into ``merged``, in place (captured graphs stay valid)."""
    adapter.check_fits(model)
    theirs = hf_state_dict(merged)
    changed = {f"model.layers.{layer}.{TARGETS[t].theirs}.weight": w for layer, t, w in _merged_weights(model, adapter)}
    with torch.no_grad():
        for name, weight in hf_state_dict(model).items():
            if name in changed or theirs[name].data_ptr() != weight.data_ptr():
                theirs[name].copy_(changed.get(name, weight))


def _merged_weights(model: LanguageModel, adapter: LoraAdapter) -> list[tuple[int, str, torch.Tensor]]:
    state = hf_state_dict(model)
    merged = []
    for layer, target, update in adapter.items():
        weight_OI = state[f"model.layers.{layer}.{TARGETS[target].theirs}.weight"].detach()
        summed_OI = weight_OI.float() + adapter.config.scaling * update.delta().to(weight_OI.device)
        merged.append((layer, target, summed_OI.to(weight_OI.dtype)))
    return merged
