"""The rollout engine: continuous batching over a paged KV cache, one decode step at a time.

Each iteration admits waiting sequences, prefills at most ``prefill_chunk`` prompt tokens densely, then runs one
decode step of every sequence past its prompt. Budgets follow each sequence's own length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from sparrow_core.cache import PagedKVCache
from sparrow_core.contracts import AttentionBackend, PageSelector, SparseLayout, SparsityPolicy
from sparrow_core.engine.device_choice import device_step_for
from sparrow_core.engine.device_run import DeviceRun
from sparrow_core.engine.device_step import DeviceStep
from sparrow_core.engine.options import EngineOptions
from sparrow_core.engine.page_pool import PagePool
from sparrow_core.engine.run import Run
from sparrow_core.engine.sequence import Request, SequenceState
from sparrow_core.engine.session import RolloutSession
from sparrow_core.engine.stats import EngineStats
from sparrow_core.errors import InputError, OutOfPagesError
from sparrow_core.model import LanguageModel
from sparrow_core.trace import Trace

BackendFactory = Callable[[PagedKVCache], tuple[AttentionBackend, PageSelector]]


class RolloutEngine:
    """Generates traces from one model with one backend and selector.

    Args:
        model: the policy; its weights may change between calls, never during one.
        make_backend: builds backend and selector over a cache (see ``engine.build``).
        landmark_vectors: the selector's vectors per page.
    """

    def __init__(
        self,
        model: LanguageModel,
        make_backend: BackendFactory,
        layout: SparseLayout,
        options: EngineOptions,
        *,
        landmark_vectors: int,
    ) -> None:
        self.model = model
        self.layout = layout
        self.options = options
        self.stats = EngineStats()
        self._make_backend = make_backend
        self._landmark_vectors = landmark_vectors
        self._cache: PagedKVCache | None = None
        self._session: RolloutSession | None = None
        self._device_step: DeviceStep | None = None

    def generate(
        self,
        requests: Sequence[Request],
        policy: SparsityPolicy,
        *,
        policy_version: int = 0,
        on_step: Callable[[EngineStats], None] | None = None,
    ) -> Iterator[Trace]:
        """Yield each request's trace as it finishes.

        Raises InputError when a prompt does not fit the context, OutOfPagesError when the pool cannot hold
        one request alone; both before anything is generated.
        """
        sequences = [self._admissible(i, request) for i, request in enumerate(requests)]
        pool = PagePool(self._reserve(sequences))
        run = self._run(sequences, pool, policy, policy_version)
        self.stats = run.stats
        with torch.no_grad(), self.model.bind(self.session):
            while not run.scheduler.done:
                yield from run.step()
                if on_step is not None:
                    on_step(run.stats)

    def _run(self, sequences: list[SequenceState], pool: PagePool, policy: SparsityPolicy, policy_version: int) -> Run:
        inputs = (self.model, self.session, self.options, self.layout, sequences, pool, policy, policy_version)
        if self.options.engine == "host" or not sequences:
            return Run(*inputs)
        self._device_step = device_step_for(
            self._device_step, self.model, self.session, self.options, sequences, policy
        )
        return DeviceRun(self._device_step, *inputs)

    def release(self) -> None:
        """Let go of the KV cache and captured graphs; the next ``generate`` makes them anew."""
        self._device_step = None
        self._cache = None
        self._session = None

    @property
    def cache(self) -> PagedKVCache:
        assert self._cache is not None, "the cache is allocated by the first generate()"
        return self._cache

    @property
    def session(self) -> RolloutSession:
        assert self._session is not None, "the session is made by the first generate()"
        return self._session

    def _admissible(self, order: int, request: Request) -> SequenceState:
        length, context = len(request.prompt_ids), self.model.context_length
        name = f"prompt {request.key.prompt}"
        if length == 0:
            raise InputError(f"{name} is empty; give at least one token")
        if length >= context:
            raise InputError(
                f"{name} has {length} tokens but the model's context is {context} and one token must be left to "
                f"generate; shorten the prompt to at most {context - 1} tokens"
            )
        out_of_range = [
            i for i in (min(request.prompt_ids), max(request.prompt_ids)) if not 0 <= i < self.model.vocab_size
        ]
        if out_of_range:
            raise InputError(f"{name} has token id {out_of_range[0]}; the vocabulary has {self.model.vocab_size} ids")
        return SequenceState(
            request=request,
            order=order,
            max_new_tokens=min(request.sampling.max_tokens, context - length),
            tokens=list(request.prompt_ids),
        )

    def _reserve(self, sequences: list[SequenceState]) -> int:
        """Pages of the pool for these sequences; allocates the cache when there is none large enough."""
        size = self.layout.page_size
        needs = sorted((-(-(s.prompt_length + s.max_new_tokens - 1) // size) for s in sequences), reverse=True)
        if self.options.num_pages is None:
            prompts = {s.request.key.prompt: -(-s.prompt_length // size) for s in sequences}
            kept = sorted(prompts.values(), reverse=True)[: self.options.max_batch]
            num_pages = max(1, sum(needs[: self.options.max_batch]) + sum(kept))
        else:
            num_pages = self.options.num_pages
            if needs and needs[0] > num_pages:
                raise OutOfPagesError(
                    f"rollout.num_pages={num_pages} cannot hold the longest request, which needs {needs[0]} pages of "
                    f"{size} tokens; raise rollout.num_pages or lower rollout.max_tokens"
                )
        self.session_for(num_pages)
        return num_pages

    def session_for(self, num_pages: int) -> RolloutSession:
        """The session over a cache of at least ``num_pages`` pages, allocated when there is none that large."""
        if self._session is None or self._cache is None or self._cache.num_pages < num_pages:
            self._cache = PagedKVCache(
                self.model.shape,
                num_pages=num_pages,
                page_size=self.layout.page_size,
                landmark_vectors=self._landmark_vectors,
                dtype=self.model.dtype,
                device=self.model.device,
            )
            self._device_step = None
            backend, selector = self._make_backend(self._cache)
            self._session = RolloutSession(backend, selector, self._cache, self.layout)
        return self._session
