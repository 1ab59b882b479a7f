"""The Triton backend against attention by its definition: compiled on CUDA, else through the interpreter."""

from __future__ import annotations

import pytest
import torch

from sparrow_backends.selectors.mean_landmark import MeanLandmark
from sparrow_backends.selectors.quest import Quest
from sparrow_backends.triton import TritonBackend
from sparrow_core.cache import AttentionShape
from sparrow_core.contracts import SparseLayout
from sparrow_core.testing import BackendConformance

CUDA = torch.cuda.is_available()


class TestTriton(BackendConformance):
    backend = TritonBackend
    selector = MeanLandmark
    device = "cuda" if CUDA else "cpu"
    page_sizes = (1, 8, 16, 32, 64, 128) if CUDA else (16,)
    group_sizes = (1, 2, 3, 4, 5, 8) if CUDA else (5,)
    usual_head_dim = 64 if CUDA else 16


class TestTritonBfloat16(BackendConformance):
    """Landmarks of a selector that the kernels do not know."""

    backend = TritonBackend
    device = "cuda" if CUDA else "cpu"
    dtype = torch.bfloat16
    lse_atol = 2e-3
    page_sizes = (8, 16, 32, 64) if CUDA else (8,)
    group_sizes = (1, 2, 3, 4, 5, 8) if CUDA else (2,)
    usual_head_dim = 128 if CUDA else 16


@pytest.mark.skipif(not CUDA, reason="the interpreter runs the two other suites")
class TestTritonFloat16(BackendConformance):
    backend = TritonBackend
    selector = Quest
    device = "cuda" if CUDA else "cpu"
    dtype = torch.float16
    lse_atol = 2e-3
    page_sizes = (16,)
    group_sizes = (4,)
    usual_head_dim = 128


@pytest.mark.parametrize(
    ("head_dim", "dtype", "named"),
    [(80, torch.bfloat16, "head_dim"), (128, torch.float64, "float64")],
    ids=["head_dim=80", "float64"],
)
def test_says_what_it_cannot_serve_and_what_can(head_dim: int, dtype: torch.dtype, named: str) -> None:
    shape = AttentionShape(1, 4, 2, head_dim)
    reasons = TritonBackend.unsupported(shape, SparseLayout(), MeanLandmark, dtype, torch.device(TestTriton.device))
    assert len(reasons) == 1
    assert named in reasons[0]
    assert "attention.backend=sdpa" in reasons[0]


def test_needs_a_gpu_when_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparrow_backends.triton.interpreted", lambda: False)
    reasons = TritonBackend.unsupported(
        AttentionShape(1, 4, 2, 64), SparseLayout(), MeanLandmark, torch.bfloat16, torch.device("cpu")
    )
    assert reasons == ["triton needs a CUDA device, not cpu; use attention.backend=sdpa"]
