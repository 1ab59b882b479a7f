"""Two gloo ranks give the losses of one; recorded traces are trained on, and those that do not fit are refused."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sparrow_core.engine.build import build_engine, build_policy, build_requests
from sparrow_core.errors import InputError
from sparrow_core.model import load_model
from sparrow_core.trace import TraceMeta, TraceSet
from sparrow_core.train_log import read_records
from sparrow_trainers.distill.adapter_files import save_adapter
from sparrow_trainers.distill.run import distill
from sparrow_trainers.distill.run_config import DistillRunConfig
from tests.distill.helpers import small_model, trained_adapter

Make = Callable[..., DistillRunConfig]


def losses(config: DistillRunConfig) -> list[tuple[float, ...]]:
    names = ("distill/loss", "distill/grad_norm", "adapter/acceptance_mean")
    records = read_records(Path(config.output) / "metrics.jsonl")
    return [tuple(record.metrics[name] for name in names) for record in records]


def test_two_ranks_give_the_losses_of_one(make_distill: Make, tmp_path: Path) -> None:
    one, two = (make_distill(output=tmp_path / name, train__steps=2) for name in ("one", "two"))
    distill(one, None)
    path = tmp_path / "two.yaml"
    path.write_text(json.dumps(two.model_dump(mode="json")))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "sparrow_core.cli", "distill", str(path), "--quiet"]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(losses(one)) == 2
    for ours, theirs in zip(losses(one), losses(two), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3)


def record(config: DistillRunConfig, directory: Path, *, top_k: bool = True, model_name: str | None = None) -> Path:
    model = load_model(config.model.source)
    engine = build_engine(model, config.attention, config.rollout)
    prompts = [tuple(3 + (7 * i + (3 + i) * k) % 57 for k in range(18 + 2 * i)) for i in range(4)]
    requests = build_requests(model, prompts, config.rollout.model_copy(update={"max_tokens": 48}))
    layout = config.attention.layout
    traces = sorted(engine.generate(requests, build_policy(config.policy, layout)), key=lambda trace: trace.key)
    if not top_k:
        none = [(t.topk_ids[:, :0].contiguous(), t.topk_logprobs[:, :0].contiguous()) for t in traces]
        traces = [
            dataclasses.replace(t, topk_ids=ids, topk_logprobs=logp)
            for t, (ids, logp) in zip(traces, none, strict=True)
        ]
    meta = TraceMeta(
        model_name or model.name, "sdpa", "mean_landmark", "static", layout.page_size, 1, 2, layout.dense_layers
    )
    TraceSet(traces, meta).save(directory)
    return directory


def test_recorded_traces_lower_the_loss(make_distill: Make, tmp_path: Path) -> None:
    recorded = record(make_distill(), tmp_path / "traces")
    changes = {"data.source": None, "evaluate.data.source": None, "traces.path": recorded}
    config = make_distill(**changes, train__steps=12, distill__support="topk", distill__optimizer__lr=0.002)
    distill(config, None)
    found = losses(config)
    assert found[-1][0] < 0.9 * found[0][0]


@pytest.mark.parametrize(
    ("recording", "message"),
    [({"top_k": False}, "needs the top-K ids"), ({"model_name": "another"}, "are of another but the model is")],
)
def test_traces_that_do_not_fit_are_refused(
    make_distill: Make, tmp_path: Path, recording: dict[str, object], message: str
) -> None:
    recorded = record(make_distill(), tmp_path / "traces", **recording)  # type: ignore[arg-type]
    changes = {"data.source": None, "evaluate.data.source": None, "traces.path": recorded}
    with pytest.raises(InputError, match=message):
        distill(make_distill(**changes, distill__support="topk"), None)


def test_an_adapter_of_another_model_is_refused(make_distill: Make, tmp_path: Path) -> None:
    other = small_model()
    torch.manual_seed(0)
    save_adapter(trained_adapter(other), other, tmp_path / "adapter")
    with pytest.raises(InputError, match="give the model it was trained on"):
        distill(make_distill(distill__initial=tmp_path / "adapter"), None)
