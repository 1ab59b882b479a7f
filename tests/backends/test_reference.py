"""The reference backend against attention by its definition, in three dtypes."""

import torch

from sparrow_backends.reference import ReferenceBackend
from sparrow_backends.selectors.quest import Quest
from sparrow_core.testing import BackendConformance


class TestReference(BackendConformance):
    backend = ReferenceBackend


class TestReferenceBfloat16(BackendConformance):
    backend = ReferenceBackend
    dtype = torch.bfloat16
    page_sizes = (16,)


class TestReferenceFloat64AndTwoLandmarks(BackendConformance):
    backend = ReferenceBackend
    selector = Quest
    dtype = torch.float64
    page_sizes = (8,)
    group_sizes = (3,)
