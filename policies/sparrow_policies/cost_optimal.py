"""The cheapest schedule whose measured tail meets tau in every bin, by an exact search over measured budgets.

Tails come from a table (``sparrow_core.search.TailTable``) and from the rollouts themselves, costs from a cost model.
After every rollout the budgets it used are known better and the search is run again. Without a table
the policy starts from its largest budget and tries the next smaller one in every bin that has tail to spare.
A bin in which no budget is known to meet tau is attended to densely, and stays so: ``tail_threshold`` follows a model
that changes, this policy follows it only where the budgets in use show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from sparrow_core import registry
from sparrow_core.config import PluginOf
from sparrow_core.contracts import PluginConfig, SparseLayout, SparsityPolicy
from sparrow_core.errors import InputError
from sparrow_core.mismatch import MismatchStream
from sparrow_core.mismatch.stream import Kind
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule
from sparrow_core.search import Candidate, SearchResult, TailTable, bin_costs, optimal_schedule, read_tail_table
from sparrow_policies._tail import StreamShape, TailReading, bin_sketch, observed_pages, read_tail
from sparrow_policies._tails_by_budget import TailsByBudget

CostPlugin = Annotated[SerializeAsAny[PluginConfig], PluginOf("sparrow.cost_models")]
_Kernel = tuple[str, int]


class CostOptimalConfig(PluginConfig):
    type: str = "cost_optimal"
    tau: float = Field(0.86, description="least tail; training was seen to be stable from 0.85 to 0.90")
    table: str | None = Field(None, description="file of measured tails; null learns them from the rollouts")
    budgets: tuple[int, ...] | None = Field(None, description="budgets to learn about when there is no table")
    cost: CostPlugin | None = Field(None, description="cost model; null counts attended tokens")
    batch: int = Field(32, ge=1, description="sequences per decode step that the cost model assumes")
    selector: str = Field("mean_landmark", description="the selector that the rollouts run with")
    quantile: float = Field(0.05, gt=0, lt=1, description="which quantile of the acceptance the tail is")
    acceptance: Kind = Field(
        "lower", description="bound of the acceptance that must meet tau; exact needs hidden states"
    )
    bin_tokens: int = Field(2000, ge=1)
    num_bins: int = Field(20, ge=1)
    confidence: float = Field(0.95, gt=0, lt=1, description="of the interval whose lower end must meet tau")
    min_tokens: int = Field(400, ge=1, description="fewer tokens of a bin in one rollout are ignored")
    margin: float = Field(
        0.01, ge=0, lt=0.5, description="a smaller budget is tried where the tail exceeds tau + margin"
    )
    explore: bool = Field(
        False, description="also try budgets that are not sure to meet tau; always on without a table"
    )
    trial_tokens: int = Field(10_000, ge=1, description="tokens after which a tried budget must have proved itself")

    @field_validator("tau")
    @classmethod
    def tau_is_a_tail(cls, tau: float) -> float:
        if not 0 < tau < 1:
            raise InputError("must lie between 0 and 1; training was seen to be stable from 0.85 to 0.90")
        return tau

    @model_validator(mode="after")
    def budgets_come_from_one_place(self) -> CostOptimalConfig:
        if (self.table is None) == (self.budgets is None):
            raise InputError("needs exactly one of 'table' (measured tails) and 'budgets' (page counts to learn about)")
        if self.budgets is not None and (not self.budgets or len(set(self.budgets)) != len(self.budgets)):
            raise InputError("budgets must name at least one page count, each once")
        return self


class CostOptimalPolicy(SparsityPolicy):
    """Least total cost of a full-length trajectory, subject to tail >= tau in every bin.

    Raises InputError when the table has other bins, or no row for the session's selector and page size.
    """

    Config: ClassVar[type[PluginConfig]] = CostOptimalConfig

    def __init__(self, config: PluginConfig, layout: SparseLayout) -> None:
        super().__init__(config, layout)
        assert isinstance(config, CostOptimalConfig)
        self.settings = config
        self._shape = StreamShape(config.bin_tokens, config.num_bins, config.quantile)
        self._own: _Kernel = (config.selector, layout.page_size)
        self._tails = _tails_by_kernel(config, layout, self._shape)
        self._costs = {kernel: self._kernel_costs(kernel, tails.budgets) for kernel, tails in self._tails.items()}
        self._schedule = self._search()

    def schedule(self) -> BudgetSchedule:
        return self._schedule

    def observe(self, mismatch: MismatchStream) -> None:
        self._shape.check(mismatch, self.settings.type)
        sketches = [bin_sketch(mismatch, index, self.settings.acceptance) for index in range(mismatch.num_bins)]
        for index, sketch in enumerate(sketches):
            if sketch.count >= self.settings.min_tokens:
                reading = read_tail(sketch, self.settings.quantile, self.settings.confidence)
                for pages in self._budgets_of(index, mismatch):
                    self._tails[self._own].add(pages, index, reading)
        self._schedule = self._search()

    def best_configuration(self) -> SearchResult:
        """The optimum over every selector and page size that was measured, which another session could run with.

        Raises InputError when nothing was measured yet.
        """
        pools = [self._candidates(kernel, tails.lower_bounds) for kernel, tails in self._tails.items()]
        return optimal_schedule([candidate for pool in pools for candidate in pool], self.settings.tau)

    def state_dict(self) -> dict[str, Any]:
        return {"tails": self._tails[self._own].state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state.get("tails"), list):
            raise InputError(f"policy state lacks 'tails', it has {sorted(state)}; give what state_dict() returned")
        self._tails[self._own].load(state["tails"])
        self._schedule = self._search()

    def _search(self) -> BudgetSchedule:
        tails, settings = self._tails[self._own], self.settings
        explore = settings.explore or settings.table is None
        if not tails.readings:
            pages: tuple[int, ...] = (max(tails.budgets),) * settings.num_bins
        else:
            trials = tails.with_trials(settings.tau, settings.margin, settings.trial_tokens) if explore else {}
            bounds = {count: trials.get(count, tails.lower_bounds(count)) for count in tails.budgets}
            pages = optimal_schedule(self._candidates(self._own, bounds.__getitem__), settings.tau).pages
        layout = self.layout
        return BudgetSchedule(pages, settings.bin_tokens, layout.page_size, layout.sink_pages, layout.recent_pages)

    def _candidates(self, kernel: _Kernel, bounds: Callable[[int], tuple[float | None, ...]]) -> list[Candidate]:
        """The kernel's budgets, and dense attention wherever any of them was measured."""
        budgets = self._tails[kernel].budgets
        rows = [(pages, bounds(pages)) for pages in budgets]
        known = [any(row[index] is not None for _, row in rows) for index in range(self.settings.num_bins)]
        rows.append((DENSE_PAGES, tuple(1.0 if k else None for k in known)))
        return [Candidate(*kernel, pages, row, self._costs[kernel][pages]) for pages, row in rows]

    def _kernel_costs(self, kernel: _Kernel, budgets: tuple[int, ...]) -> dict[int, tuple[float, ...]]:
        settings, (selector, page_size) = self.settings, kernel
        pages = [*budgets, DENSE_PAGES]
        if settings.cost is None:
            return {count: _attended(count, page_size, settings) for count in pages}
        layout = SparseLayout(page_size, self.layout.sink_pages, self.layout.recent_pages, self.layout.dense_layers)
        vectors = registry.load("sparrow.selectors", selector).landmark_vectors
        model = registry.load("sparrow.cost_models", settings.cost.type)(settings.cost, layout, vectors)
        table = bin_costs(
            model,
            pages,
            bin_tokens=settings.bin_tokens,
            num_bins=settings.num_bins,
            batch=settings.batch,
            points=4,
        )
        return {count: tuple(row) for count, row in zip(pages, table.tolist(), strict=True)}

    def _budgets_of(self, index: int, mismatch: MismatchStream) -> list[int]:
        """The budgets that a bin's tokens tell of: all that cover the bin when its own did, none if not ours."""
        scheduled, budgets = self._schedule.pages[index], self._tails[self._own].budgets
        hi = mismatch.bin(index).hi
        full = DENSE_PAGES if hi is None else -(-hi // self.layout.page_size)
        pages = observed_pages(mismatch, index, scheduled, self.layout.page_size)
        if pages >= full:
            return [budget for budget in budgets if budget >= full]
        return [budget for budget in budgets if budget == pages]


def _tails_by_kernel(
    config: CostOptimalConfig, layout: SparseLayout, shape: StreamShape
) -> dict[_Kernel, TailsByBudget]:
    own = (config.selector, layout.page_size)
    if config.table is None:
        assert config.budgets is not None
        return {own: TailsByBudget(_checked_budgets(config.budgets, layout), shape.num_bins)}
    table = read_tail_table(config.table)
    _check_table(table, config, shape)
    kernels = sorted({(row.selector, row.page_size) for row in table.rows})
    if own not in kernels:
        raise InputError(
            f"policy.table={config.table!r} has no row for selector {own[0]} with page size {own[1]}; it has "
            f"{', '.join(f'{selector} with {size}' for selector, size in kernels)}. Calibrate that one, or set "
            "policy.selector and attention.page_size"
        )
    tails = {}
    for kernel in kernels:
        rows = [row for row in table.rows if (row.selector, row.page_size) == kernel]
        tails[kernel] = TailsByBudget(_checked_budgets([row.pages for row in rows], layout), shape.num_bins)
        for row in rows:
            for index, entry in enumerate(row.bins):
                if entry is not None:
                    tails[kernel].add(row.pages, index, TailReading(entry.tokens, entry.tail, entry.low, entry.high))
    return tails


def _check_table(table: TailTable, config: CostOptimalConfig, shape: StreamShape) -> None:
    for name in ("bin_tokens", "num_bins", "quantile"):
        mine, theirs = getattr(shape, name), getattr(table, name)
        if mine != theirs:
            raise InputError(f"policy.table={config.table!r} has {name}={theirs}, but policy.{name}={mine}; set it so")


def _checked_budgets(budgets: Sequence[int], layout: SparseLayout) -> tuple[int, ...]:
    least = layout.sink_pages + layout.recent_pages + 1
    if min(budgets) < least:
        raise InputError(
            f"policy budget {min(budgets)} is below sink + recent + 1 = {least}; give at least {least} pages"
        )
    return tuple(sorted(budgets))


def _attended(pages: int, page_size: int, config: CostOptimalConfig) -> tuple[float, ...]:
    """Tokens attended to per bin by one sequence that visits every length, read at the bins' middles."""
    middles = [(index + 0.5) * config.bin_tokens for index in range(config.num_bins)]
    return tuple(config.bin_tokens * min(float(pages) * page_size, middle) for middle in middles)
