"""The stream: binning, merging in any order, and what it refuses."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.errors import InputError
from sparrow_core.mismatch import BinStats, MismatchError, MismatchStream, TokenMismatch
from sparrow_core.testing.mismatch import streams, token_mismatches


def tokens_at(lengths: list[int], lower: list[float], **changes: torch.Tensor) -> TokenMismatch:
    lower_T, lengths_T = torch.tensor(lower), torch.tensor(lengths)
    fields = {
        "lengths_T": lengths_T,
        "lower_T": lower_T,
        "upper_T": lower_T.clone(),
        "pages_T": torch.ones_like(lengths_T),
        "attended_T": lengths_T.clone(),
    }
    return TokenMismatch(**(fields | changes))


def cut(tokens: TokenMismatch, rows: torch.Tensor | slice) -> TokenMismatch:
    values = {f.name: getattr(tokens, f.name) for f in dataclasses.fields(tokens)}
    return TokenMismatch(**{name: None if v is None else v[rows] for name, v in values.items()})


def small_stream() -> MismatchStream:
    return MismatchStream(bin_tokens=10, num_bins=3, quantile=0.25)


def test_a_token_lands_in_the_bin_of_its_context_length():
    stream = small_stream()
    stream.observe(tokens_at([1, 9, 10, 19, 20, 29, 30, 5000], [0.5] * 8))
    assert [b.tokens for b in stream.bins()] == [2, 2, 4]
    assert [(b.lo, b.hi) for b in stream.bins()] == [(0, 10), (10, 20), (20, None)]
    assert stream.total == 8


def test_bin_statistics_are_the_tokens_own():
    stream = small_stream()
    lower = [0.25, 0.5, 0.75, 1.0]
    stream.observe(
        tokens_at(
            [10, 12, 14, 16],
            lower,
            upper_T=torch.tensor([0.5, 0.75, 0.875, 1.0]),
            exact_T=torch.tensor([0.375, 0.625, 0.8125, 1.0]),
            pages_T=torch.tensor([1, 2, 3, 4]),
            attended_T=torch.tensor([2, 4, 6, 14]),
        )
    )
    stats = stream.bin(1)
    assert stats == BinStats(
        lo=10,
        hi=20,
        tokens=4,
        mean=0.625,
        tail_lower=0.25,
        tail_upper=0.5,
        tail_exact=0.375,
        tail_interval=stream.sketch(1, "lower").tail_confidence(0.25),
        pages_mean=2.5,
        kept_fraction=0.5,
        fraction_above_0999=0.25,
    )
    assert (stream.tail(1), stream.tail(1, "upper"), stream.tail(1, "exact")) == (0.25, 0.5, 0.375)


def test_an_empty_bin_has_no_statistics():
    stream = small_stream()
    stats = stream.bin(0)
    assert stats.tokens == 0
    assert {v for k, v in dataclasses.asdict(stats).items() if k not in ("lo", "hi", "tokens")} == {None}
    assert stream.tail(0) is None
    assert stream.overall().tokens == 0
    stream.observe(cut(tokens_at([1], [0.5]), slice(0, 0)))
    assert stream == small_stream()


def test_exact_tail_needs_an_exact_value_of_every_token():
    stream = small_stream()
    stream.observe(tokens_at([1], [0.5], exact_T=torch.tensor([0.5])))
    assert stream.tail(0, "exact") == 0.5
    stream.observe(tokens_at([1], [0.5]))
    assert stream.tail(0, "exact") is None
    assert stream.bin(0).tail_exact is None
    assert stream.sketch(0, "exact").count == 1


@given(token_mismatches(), st.randoms(use_true_random=False), st.integers(0, 40))
def test_state_does_not_depend_on_token_order_or_batch_split(tokens, random, split):
    whole, parts = small_stream(), small_stream()
    whole.observe(tokens)
    order = list(range(len(tokens.lengths_T)))
    random.shuffle(order)
    shuffled = cut(tokens, torch.tensor(order, dtype=torch.int64))
    parts.observe(cut(shuffled, slice(split, None)))
    parts.observe(cut(shuffled, slice(None, split)))
    assert parts == whole
    assert json.dumps(parts.state_dict()) == json.dumps(whole.state_dict())


@given(st.lists(streams(), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_merge_order_of_ranks_changes_nothing(ranks, random):
    before = [json.dumps(r.state_dict()) for r in ranks]
    forward, backward = ranks[0].empty_like(), ranks[0].empty_like()
    for rank in ranks:
        forward.merge(rank)
    for rank in random.sample(ranks, len(ranks)):
        backward.merge(rank)
    tree = ranks[0].empty_like()
    rest = ranks[0].empty_like()
    for rank in ranks[1:]:
        rest.merge(rank)
    tree.merge(rest)
    tree.merge(ranks[0])
    assert forward == backward == tree
    assert forward.bins() == backward.bins() == tree.bins()
    assert [json.dumps(r.state_dict()) for r in ranks] == before


@given(streams())
def test_duplicating_the_batch_changes_counts_alone(stream):
    doubled = stream.empty_like()
    doubled.merge(stream)
    doubled.merge(stream)
    for once, twice in zip(stream.bins(), doubled.bins(), strict=True):
        assert twice.tokens == 2 * once.tokens
        same = dataclasses.replace(twice, tokens=once.tokens, tail_interval=once.tail_interval)
        assert same == once


@given(streams(exact=True))
def test_tails_are_ordered_and_lie_in_their_interval(stream):
    for stats in stream.bins():
        if stats.tokens:
            assert 0 <= stats.tail_lower <= stats.tail_exact <= stats.tail_upper <= 1
            assert stats.tail_interval[0] <= stats.tail_lower <= stats.tail_interval[1]
            assert 0 < stats.kept_fraction <= 1


@given(streams())
def test_state_round_trips_through_json(stream):
    restored = MismatchStream.from_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert restored == stream
    assert restored.bins() == stream.bins()


@given(st.lists(token_mismatches(), max_size=3))
def test_overall_is_one_bin_of_everything(batches):
    stream, wide = small_stream(), MismatchStream(bin_tokens=10, num_bins=1, quantile=0.25)
    for tokens in batches:
        stream.observe(tokens)
        wide.observe(tokens)
    assert stream.overall() == wide.bin(0)
    assert stream.total == wide.total == sum(len(t.lengths_T) for t in batches)


def test_a_sketch_handed_out_is_a_copy():
    stream = small_stream()
    stream.observe(tokens_at([1], [0.5]))
    stream.sketch(0, "lower").add(torch.tensor([0.1]))
    assert stream.sketch(0, "lower").count == 1


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"bin_tokens": 11}, "bin_tokens"), ({"num_bins": 4}, "num_bins"), ({"quantile": 0.5}, "quantile")],
)
def test_streams_of_other_settings_do_not_merge(settings, name):
    other = MismatchStream(**({"bin_tokens": 10, "num_bins": 3, "quantile": 0.25} | settings))
    with pytest.raises(InputError, match=name):
        small_stream().merge(other)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"bin_tokens": 0}, "bin_tokens=0"),
        ({"num_bins": 0}, "num_bins=0"),
        ({"quantile": 0.0}, r"quantile=0\.0"),
        ({"quantile": 1.0}, r"quantile=1\.0"),
        ({"quantile": float("nan")}, "quantile=nan"),
    ],
)
def test_settings_out_of_range_are_refused(settings, name):
    with pytest.raises(InputError, match=name):
        MismatchStream(**settings)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"lower_T": torch.tensor([0.5, torch.nan])}, MismatchError, "lower is nan at token 1"),
        ({"upper_T": torch.tensor([0.5, 1.1])}, MismatchError, "upper is .* at token 1"),
        ({"exact_T": torch.tensor([-0.5, 1.0])}, MismatchError, "exact is -0.5 at token 0"),
        ({"upper_T": torch.tensor([0.5, 0.25])}, MismatchError, "above upper=0.25 at token 1"),
        ({"upper_T": torch.tensor([0.5])}, InputError, "upper has shape"),
        ({"lower_T": torch.tensor([[0.5], [0.5]])}, InputError, "lower has shape"),
        ({"lengths_T": torch.tensor([1, 0])}, InputError, "lengths is 0 at token 1"),
        ({"pages_T": torch.tensor([0, 1])}, InputError, "pages is 0 at token 0"),
        ({"attended_T": torch.tensor([1, 9])}, InputError, "attended is 9 at token 1"),
        ({"lengths_T": torch.tensor([1.0, 2.0])}, InputError, "integers"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else None,
)
def test_wrong_tokens_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        tokens_at([5, 6], [0.5, 0.5], **changes)


def test_overshoot_by_rounding_is_taken():
    stream = small_stream()
    stream.observe(tokens_at([1], [1.0000005]))
    assert stream.tail(0) == 1.0


@pytest.mark.parametrize("index", [-1, 3])
def test_bins_that_do_not_exist_are_refused(index):
    with pytest.raises(InputError, match="bins 0 to 2"):
        small_stream().bin(index)


def test_unknown_kind_is_refused():
    with pytest.raises(InputError, match="lower, upper, exact"):
        small_stream().tail(0, "mean")


def test_state_with_a_missing_field_is_refused():
    state = small_stream().state_dict()
    del state["bins"][1]["pages"]
    with pytest.raises(InputError, match="pages"):
        MismatchStream.from_state_dict(state)
