"""The built-in cost models through the conformance suite, and models with one known defect each through its checks."""

from typing import ClassVar

import pytest
import torch

from sparrow_core.contracts import CostModel, PluginConfig
from sparrow_core.testing import CostModelConformance
from sparrow_policies.cost.analytic import AnalyticConfig, AnalyticCost, AnalyticEquivalentFlops, EquivalentFlopsConfig
from sparrow_policies.cost.measured import MeasuredConfig, MeasuredCost, MeasuredRow, MeasuredTable


class TestAnalytic(CostModelConformance):
    cost_model = AnalyticCost
    config = AnalyticConfig(model="qwen3-1.7b")
    lengths = (1, 17, 500, 2000, 2001, 40_000)


class TestEquivalentFlops(CostModelConformance):
    cost_model = AnalyticEquivalentFlops
    config = EquivalentFlopsConfig(model="qwen3-8b")


def _steps() -> tuple[MeasuredRow, ...]:
    """As a machine would take that pays 1 ms, and 1 us per attended token of a sequence."""
    return tuple(
        MeasuredRow(batch=4, length=n, pages=pages, seconds=1e-3 + 4e-6 * min(n, (pages or n) * 16))
        for n in (512, 2048, 4096)
        for pages in (None, 8, 32)
    )


class TestMeasured(CostModelConformance):
    cost_model = MeasuredCost
    config = MeasuredConfig(tables=(MeasuredTable(page_size=16, rows=_steps()),))


class Good(CostModel):
    """Tokens attended to, plus one."""

    class Config(PluginConfig):
        type: str = "good"

    unit: ClassVar = "seconds"

    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return 1.0 + float(torch.minimum(lengths_B.double(), pages_B.double() * 16).sum())


class NoUnit(Good):
    unit: ClassVar = "hours"


class FreeWhenShort(Good):
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return super().step_cost(lengths_B, pages_B) if int(lengths_B.max()) > 100 else 0.0


class FallsWithLength(Good):
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return 1.0 / super().step_cost(lengths_B, pages_B)


class FallsWithPages(Good):
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return float(lengths_B.sum()) + 1.0 / float(pages_B.double().clamp(max=9999).sum())


class CountsEmptyRows(Good):
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return super().step_cost(lengths_B, pages_B) + len(lengths_B)


class PaysForPagesThatAreNotThere(Good):
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return 1.0 + float(pages_B.double().sum())


class Remembers(Good):
    calls = 0

    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        self.calls += 1
        return super().step_cost(lengths_B, pages_B) + self.calls


class FirstRowOnly(Good):
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return super().step_cost(lengths_B[:1], pages_B[:1])


class WritesItsInput(Good):
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        pages_B.clamp_(max=100)
        return super().step_cost(lengths_B, pages_B)


class ReturnsATensor(Good):
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return torch.tensor(1.0)  # type: ignore[return-value]


class NotFinite(Good):
    def step_cost(self, lengths_B: torch.Tensor, pages_B: torch.Tensor) -> float:
        return float("nan")


class TestGood(CostModelConformance):
    cost_model = Good


@pytest.mark.parametrize(
    ("defect", "check", "said"),
    [
        (NoUnit, "test_states_its_unit", "must be one of seconds, eFLOP"),
        (FreeWhenShort, "test_costs_are_positive", "must cost something"),
        (NotFinite, "test_costs_are_positive", "costs nan"),
        (ReturnsATensor, "test_costs_are_positive", "must return a float"),
        (FallsWithLength, "test_dense_cost_does_not_fall_with_length", "dense at length 17"),
        (FallsWithLength, "test_dense_cost_grows_over_the_lengths", "must cost more"),
        (FallsWithPages, "test_cost_does_not_fall_with_pages", "8 pages cost"),
        (PaysForPagesThatAreNotThere, "test_a_budget_beyond_the_last_page_costs_what_dense_does", "leave nothing out"),
        (CountsEmptyRows, "test_empty_rows_cost_nothing_more", "two rows of length 0"),
        (Remembers, "test_same_step_same_cost", "changed the cost"),
        (FirstRowOnly, "test_the_order_of_rows_changes_nothing", ""),
        (WritesItsInput, "test_asking_changes_no_input", ""),
    ],
)
def test_cost_model_defects(defect: type[Good], check: str, said: str) -> None:
    suite = type("Suite", (CostModelConformance,), {"cost_model": defect})()
    with pytest.raises(AssertionError) as failure:
        getattr(suite, check)()
    assert said in str(failure.value)
