"""Every selector on CUDA, where kernels score and select, under the suite that the CPU passes."""

from __future__ import annotations

import pytest
import torch

from sparrow_backends.selectors.gqa_max_softmax import GqaMaxSoftmax
from sparrow_backends.selectors.mean_landmark import MeanLandmark
from sparrow_backends.selectors.quest import Quest
from sparrow_core.testing import SelectorConformance

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class TestMeanLandmark(SelectorConformance):
    selector = MeanLandmark
    device = "cuda"


class TestQuest(SelectorConformance):
    selector = Quest
    device = "cuda"


class TestGqaMaxSoftmax(SelectorConformance):
    selector = GqaMaxSoftmax
    device = "cuda"
