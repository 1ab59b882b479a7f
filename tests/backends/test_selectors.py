"""Every built-in selector through the conformance suite, and what each one ranks by."""

from sparrow_backends.selectors.gqa_max_softmax import GqaMaxSoftmax
from sparrow_backends.selectors.mean_landmark import MeanLandmark
from sparrow_backends.selectors.oracle import Oracle
from sparrow_backends.selectors.quest import Quest
from sparrow_backends.selectors.random import Random
from sparrow_backends.selectors.window import Window
from sparrow_core.testing import SelectorConformance


class TestMeanLandmark(SelectorConformance):
    selector = MeanLandmark


class TestGqaMaxSoftmax(SelectorConformance):
    selector = GqaMaxSoftmax


class TestQuest(SelectorConformance):
    selector = Quest


class TestWindow(SelectorConformance):
    selector = Window


class TestOracle(SelectorConformance):
    selector = Oracle


class TestRandom(SelectorConformance):
    selector = Random


class TestOtherReservedPages(SelectorConformance):
    selector = MeanLandmark
    sink_pages = 2
    recent_pages = 1


class TestNoSinks(SelectorConformance):
    selector = Quest
    sink_pages = 0
    recent_pages = 3
