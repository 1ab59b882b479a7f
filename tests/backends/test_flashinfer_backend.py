"""The FlashInfer backend against attention by its definition, on CUDA; and what it says where it cannot serve."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from sparrow_backends.flashinfer import FlashInferBackend
from sparrow_backends.selectors.mean_landmark import MeanLandmark
from sparrow_core.cache import AttentionShape
from sparrow_core.contracts import SparseLayout
from sparrow_core.testing import BackendConformance

INSTALLED = importlib.util.find_spec("flashinfer") is not None


@pytest.mark.gpu
@pytest.mark.skipif(not (INSTALLED and torch.cuda.is_available()), reason="needs a CUDA device and flashinfer-python")
class TestFlashInfer(BackendConformance):
    backend = FlashInferBackend
    selector = MeanLandmark
    device = "cuda"
    dtype = torch.bfloat16
    lse_atol = 5e-3
    page_sizes = (1, 8, 16, 64)
    head_dims = (128,)
    usual_head_dim = 128


def test_says_what_it_cannot_serve_and_what_can() -> None:
    shape = AttentionShape(1, 4, 2, 80)
    reasons = FlashInferBackend.unsupported(shape, SparseLayout(), MeanLandmark, torch.float32, torch.device("cpu"))
    for named in ("cpu", "float32", "head_dim"):
        assert sum(named in reason for reason in reasons) == 1
    assert all("use attention.backend=" in reason for reason in reasons)
    assert INSTALLED or any("not installed" in reason for reason in reasons)
