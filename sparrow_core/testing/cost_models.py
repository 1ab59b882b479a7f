"""One suite for every cost model::

from sparrow_core.testing import CostModelConformance

class TestMine(CostModelConformance):
    cost_model = MyCost

A step that the model refuses with an InputError (a measured one, beyond its table) skips the test with the reason;
``lengths`` and ``batch`` move the steps to where it can answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, get_args, get_type_hints

import pytest
import torch

from sparrow_core.contracts import API_VERSION, CostModel, PluginConfig, SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.schedule import DENSE_PAGES

_ROUNDING = 1e-9


class CostModelConformance:
    """Derive a class named ``Test...`` and set ``cost_model``."""

    cost_model: ClassVar[type[CostModel]]
    config: ClassVar[PluginConfig | None] = None
    """None: the cost model's defaults."""
    layout: ClassVar[SparseLayout] = SparseLayout()
    lengths: ClassVar[tuple[int, ...]] = (1, 17, 500, 2000, 2001, 4000)
    """Ascending context lengths the cost is asked for."""
    batch: ClassVar[int] = 4

    def make(self) -> CostModel:
        return self.cost_model(self.config or self.cost_model.Config.model_validate({}), self.layout)

    def cost(self, lengths: Sequence[int], pages: Sequence[int], model: CostModel | None = None) -> float:
        """Cost of one step, checked to be a finite number; skips the test where the model refuses to answer."""
        model = model or self.make()
        lengths_B = torch.tensor(lengths, dtype=torch.int32)
        pages_B = torch.tensor(pages, dtype=torch.int32)
        try:
            cost = model.step_cost(lengths_B, pages_B)
        except InputError as error:
            pytest.skip(f"the model refuses this step: {error}")
        assert isinstance(cost, float), f"step_cost must return a float, not {type(cost).__name__}"
        assert math.isfinite(cost), f"a step of lengths {list(lengths)} and pages {list(pages)} costs {cost}"
        return cost

    def of_batch(self, length: int, pages: int) -> float:
        """Cost of a step of ``batch`` sequences of one length under one budget."""
        return self.cost([length] * self.batch, [pages] * self.batch)

    def budgets(self, length: int) -> list[int]:
        """Ascending budgets that leave pages out at this length, the smallest possible one first."""
        least = self.layout.sink_pages + self.layout.recent_pages + 1
        most = -(-length // self.layout.page_size) - 1
        return sorted({min(least * factor, most) for factor in (1, 2, 4, 8, 16, most)}) if most >= least else []

    def test_states_its_unit(self) -> None:
        assert self.cost_model.api_version == API_VERSION
        units = get_args(get_args(get_type_hints(CostModel)["unit"])[0])
        unit = getattr(self.cost_model, "unit", None)
        assert unit in units, f"unit={unit!r} must be one of {', '.join(units)}"

    def test_costs_are_positive(self) -> None:
        for length in self.lengths:
            for pages in (*self.budgets(length), DENSE_PAGES):
                cost = self.of_batch(length, pages)
                assert cost > 0, f"a step at length {length} under {pages} pages costs {cost}; it must cost something"

    def test_dense_cost_does_not_fall_with_length(self) -> None:
        costs = [self.of_batch(length, DENSE_PAGES) for length in self.lengths]
        for (shorter, less), (longer, more) in pairwise(zip(self.lengths, costs, strict=True)):
            assert more >= less * (1 - _ROUNDING), (
                f"dense at length {longer} costs {more}, less than {less} at {shorter}"
            )

    def test_dense_cost_grows_over_the_lengths(self) -> None:
        shortest, longest = self.lengths[0], self.lengths[-1]
        assert self.of_batch(longest, DENSE_PAGES) > self.of_batch(shortest, DENSE_PAGES), (
            f"dense attention at length {longest} must cost more than at {shortest}"
        )

    def test_cost_does_not_fall_with_pages(self) -> None:
        """Among budgets that leave pages out; the dense one is spared scoring and may cost less."""
        for length in self.lengths:
            costs = [(pages, self.of_batch(length, pages)) for pages in self.budgets(length)]
            for (fewer, less), (many, more) in pairwise(costs):
                assert more >= less * (1 - _ROUNDING), (
                    f"at length {length}, {many} pages cost {more}, less than the {less} of {fewer} pages"
                )

    def test_a_budget_beyond_the_last_page_costs_what_dense_does(self) -> None:
        for length in self.lengths:
            all_pages = -(-length // self.layout.page_size)
            dense = self.of_batch(length, DENSE_PAGES)
            for pages in (all_pages, all_pages + 1):
                cost = self.of_batch(length, pages)
                assert cost == pytest.approx(dense, rel=_ROUNDING), (
                    f"{pages} pages at length {length} leave nothing out, but cost {cost} where dense costs {dense}"
                )

    def test_empty_rows_cost_nothing_more(self) -> None:
        length = self.lengths[-1]
        for pages in (*self.budgets(length)[:1], DENSE_PAGES):
            full, budgets = [length] * self.batch, [pages] * self.batch
            cost, padded = self.cost(full, budgets), self.cost([0, *full, 0], [pages, *budgets, pages])
            assert padded == pytest.approx(cost, rel=_ROUNDING), (
                f"two rows of length 0 raise the cost of a step from {cost} to {padded}"
            )

    def test_the_order_of_rows_changes_nothing(self) -> None:
        lengths = [self.lengths[-1 - row % 2] for row in range(max(2, self.batch))]
        pages = [
            (self.budgets(length) or [DENSE_PAGES])[0] if length == lengths[0] else DENSE_PAGES for length in lengths
        ]
        assert self.cost(lengths[::-1], pages[::-1]) == pytest.approx(self.cost(lengths, pages), rel=_ROUNDING)

    def test_same_step_same_cost(self) -> None:
        length = self.lengths[-1]
        step = [length] * self.batch, [(self.budgets(length) or [DENSE_PAGES])[0]] * self.batch
        model = self.make()
        first = self.cost(*step, model)
        self.cost([self.lengths[-2]] * self.batch, [DENSE_PAGES] * self.batch, model)
        assert self.cost(*step, model) == first, "another step between two equal ones changed the cost"
        assert self.cost(*step) == first, "two models of one configuration disagree"

    def test_asking_changes_no_input(self) -> None:
        model = self.make()
        lengths_B = torch.tensor([self.lengths[-1]] * self.batch, dtype=torch.int32)
        pages_B = torch.full_like(lengths_B, DENSE_PAGES)
        before = lengths_B.clone(), pages_B.clone()
        self.cost(lengths_B.tolist(), pages_B.tolist(), model)
        try:
            model.step_cost(lengths_B, pages_B)
        except InputError as error:
            pytest.skip(f"the model refuses this step: {error}")
        assert torch.equal(lengths_B, before[0])
        assert torch.equal(pages_B, before[1])
