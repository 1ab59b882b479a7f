"""Packed documents on CUDA: the variable-length kernel equals attention by document, forward and backward."""

from __future__ import annotations

import pytest
import torch

from sparrow_core.model import PackedDocuments, SparrowAttention
from sparrow_core.model.attention import _causal_by_document

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (9, 3)], ids=["group1", "group4", "group3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"])
def test_packed_documents_equal_attention_by_document(heads: tuple[int, int], dtype: torch.dtype) -> None:
    lengths = [1, 63, 200, 17]
    documents = PackedDocuments(torch.tensor([0, *lengths]).cumsum(0).to(device="cuda", dtype=torch.int32))
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(1, sum(lengths), n, 64, generator=generator, device="cuda").to(dtype).requires_grad_()
        for n in (heads[0], heads[1], heads[1])
    )
    out = SparrowAttention.Config(layer_id=0).build()(
        q, k, v, attention_masks=documents, scale=0.2, enable_gqa=heads[0] != heads[1]
    )
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = _causal_by_document(*exact, documents, 0.2, heads[0] != heads[1])
    upstream = torch.randn(out.shape, generator=generator, device="cuda")
    (out.float() * upstream).sum().backward()
    (expected * upstream).sum().backward()
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    assert (out - expected).abs().max() < tolerance
    for ours, reference in zip((q, k, v), exact, strict=True):
        assert (ours.grad - reference.grad).abs().max() < tolerance * max(1.0, float(reference.grad.abs().max()))
