"""The SDPA backend against attention by its definition, in two dtypes."""

import torch

from sparrow_backends.sdpa import SdpaBackend
from sparrow_core.testing import BackendConformance


class TestSdpa(BackendConformance):
    backend = SdpaBackend


class TestSdpaBfloat16(BackendConformance):
    backend = SdpaBackend
    dtype = torch.bfloat16
    page_sizes = (16,)
