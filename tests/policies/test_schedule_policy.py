"""Dense, static and schedule policies, the published presets, and schedule files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.contracts import SparseLayout
from sparrow_core.errors import InputError
from sparrow_core.schedule import DENSE_PAGES, BudgetSchedule
from sparrow_core.schedule_file import ScheduleFile, read_schedule, write_schedule
from sparrow_policies.dense import DenseConfig, DensePolicy
from sparrow_policies.schedule import ScheduleConfig, SchedulePolicy, preset, preset_names
from sparrow_policies.static import StaticConfig, StaticPolicy


def test_dense_attends_to_every_page_at_any_length() -> None:
    schedule = DensePolicy(DenseConfig(), SparseLayout(page_size=8)).schedule()
    assert schedule.is_dense
    assert schedule.page_size == 8
    assert schedule.pages_at(torch.tensor([1, 10**6])).tolist() == [DENSE_PAGES] * 2


def test_static_gives_its_pages_at_any_length() -> None:
    schedule = StaticPolicy(StaticConfig(pages=9), SparseLayout(sink_pages=3)).schedule()
    assert schedule.pages_at(torch.tensor([1, 1999, 2000, 10**6])).tolist() == [9] * 4
    assert schedule.min_pages == 6


@pytest.mark.parametrize(("sink", "recent"), [(0, 1), (1, 2), (4, 3)])
def test_static_takes_sink_recent_and_one_more_but_not_less(sink: int, recent: int) -> None:
    layout = SparseLayout(sink_pages=sink, recent_pages=recent)
    least = sink + recent + 1
    assert StaticPolicy(StaticConfig(pages=least), layout).schedule().pages == (least,)
    if least > 2:
        with pytest.raises(InputError, match=rf"policy\.pages={least - 1} .*give at least {least} pages"):
            StaticPolicy(StaticConfig(pages=least - 1), layout)


def test_there_are_twenty_presets_of_twenty_bins() -> None:
    assert len(preset_names()) == 20
    for name in preset_names():
        schedule = preset(name)
        assert (schedule.num_bins, schedule.bin_tokens, schedule.page_size) == (20, 2000, 16)
        assert (schedule.sink_pages, schedule.recent_pages) == (1, 2)
        assert list(schedule.pages) == sorted(schedule.pages)


PUBLISHED = {
    # preset, tokens of context: middle pages as published
    ("qwen3-1.7b-0.86", 0): 29,
    ("qwen3-1.7b-0.86", 1999): 29,
    ("qwen3-1.7b-0.86", 2000): 61,
    ("qwen3-1.7b-0.86", 19_999): 253,
    ("qwen3-4b-0.90", 38_000): 893,
    ("qwen3-8b-0.86", 33_999): 317,
    ("qwen3-8b-0.86", 34_000): 385,
    ("qwen3-8b-0.86", 36_000): 445,
    ("qwen3-14b-0.86", 1_000_000): 893,
    ("qwen3-8b-0.92", 12_000): 509,
}


@pytest.mark.parametrize(("place", "middle"), PUBLISHED.items(), ids=lambda value: str(value))
def test_a_preset_is_the_published_count_plus_one_sink_and_two_recent(place: tuple[str, int], middle: int) -> None:
    name, length = place
    policy = SchedulePolicy(ScheduleConfig(preset=name), SparseLayout())
    assert policy.schedule().pages_at(torch.tensor([length])).tolist() == [middle + 3]


def test_every_preset_count_but_the_known_misprint_is_on_the_published_grid() -> None:
    off = [(name, i, n) for name in preset_names() for i, n in enumerate(preset(name).pages) if n % 16]
    assert off == [("qwen3-8b-0.86", 17, 388)]


def test_an_unknown_preset_lists_the_names() -> None:
    with pytest.raises(
        InputError, match=r"'qwen3-8b-086' is unknown; did you mean 'qwen3-8b-0\.86'\? .*qwen3-14b-0\.86"
    ):
        SchedulePolicy(ScheduleConfig(preset="qwen3-8b-086"), SparseLayout())


@pytest.mark.parametrize("given_keys", [{}, {"preset": "qwen3-8b-0.86", "file": "x.json"}], ids=["none", "both"])
def test_schedule_needs_one_source(given_keys: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="exactly one of 'preset' and 'file'"):
        ScheduleConfig(**given_keys)


@pytest.mark.parametrize(
    ("layout", "key"),
    [(SparseLayout(32), "page_size"), (SparseLayout(16, 2), "sink_pages"), (SparseLayout(16, 1, 3), "recent_pages")],
)
def test_a_schedule_for_another_layout_is_refused_by_the_differing_key(layout: SparseLayout, key: str) -> None:
    with pytest.raises(InputError) as error:
        SchedulePolicy(ScheduleConfig(preset="qwen3-8b-0.86"), layout)
    assert f"but attention.{key}={getattr(layout, key)}" in str(error.value)
    others = {"page_size", "sink_pages", "recent_pages"} - {key}
    assert not any(other in str(error.value) for other in others)


_schedules = st.builds(
    lambda sink, recent, steps, size, bins: BudgetSchedule(
        tuple(min(DENSE_PAGES, sink + recent + 1 + sum(steps[: i + 1])) for i in range(len(steps))),
        bins,
        size,
        sink,
        recent,
    ),
    st.integers(0, 4),
    st.integers(1, 4),
    st.lists(st.integers(0, 300) | st.just(DENSE_PAGES), min_size=1, max_size=30),
    st.integers(1, 256),
    st.integers(1, 5000),
)


@given(_schedules, st.data())
def test_a_bin_starts_at_its_edge_and_the_last_never_ends(schedule: BudgetSchedule, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, schedule.num_bins - 1))
    edge = index * schedule.bin_tokens
    before = schedule.pages[max(index - 1, 0)]
    lengths = torch.tensor([max(edge - 1, 0), edge, edge + schedule.bin_tokens - 1, 2**31 - 1])
    pages = schedule.pages_at(lengths)
    assert pages.dtype == torch.int32
    assert pages.tolist() == [before, schedule.pages[index], schedule.pages[index], schedule.pages[-1]]


@given(_schedules)
def test_a_schedule_file_round_trips(tmp_path_factory: pytest.TempPathFactory, schedule: BudgetSchedule) -> None:
    path = tmp_path_factory.mktemp("schedule") / "made" / "schedule.json"
    file = ScheduleFile(schedule, "SmolLM2", "mean_landmark", {"tau": 0.86, "prompts": ["a"]})
    assert read_schedule(write_schedule(path, file)) == file
    assert list(path.parent.iterdir()) == [path]


def test_the_policy_follows_its_file(tmp_path: Path) -> None:
    schedule = BudgetSchedule((4, 8, DENSE_PAGES), bin_tokens=100)
    path = write_schedule(tmp_path / "s.json", ScheduleFile(schedule, "m", "quest"))
    assert SchedulePolicy(ScheduleConfig(file=str(path)), SparseLayout()).schedule() == schedule
    assert json.loads(path.read_text())["pages"] == [4, 8, "dense"]


def _file(**changes: Any) -> dict[str, Any]:
    data = {"format": 1, "model": "m", "selector": "s", "page_size": 16, "bin_tokens": 2000}
    data |= {"sink_pages": 1, "recent_pages": 2, "pages": [29, 61, 93], "provenance": {}}
    return {key: value for key, value in (data | changes).items() if value is not ...}


EDITED = {
    "falling": ({"pages": [29, 61, 45]}, "pages[2]=45 (bin 2, from 4000 tokens) is below pages[1]=61"),
    "below the least": ({"pages": [29, 3, 93]}, "pages[1]=3 (bin 1, 2000 to 4000 tokens) must be at least sink"),
    "negative": ({"pages": [-1]}, "pages[0]=-1 (bin 0, from 0 tokens) must be at least"),
    "too large": ({"pages": [29, 2**31]}, f"and at most {DENSE_PAGES}"),
    "text": ({"pages": [29, "61"]}, "pages[1]"),
    "fraction": ({"pages": [29, 61.5]}, "pages[1]"),
    "truth value": ({"pages": [True]}, "pages[0]"),
    "no pages": ({"pages": []}, "pages=[]"),
    "missing key": ({"pages": ...}, "pages is missing"),
    "missing page size": ({"page_size": ...}, "page_size is missing"),
    "page size 0": ({"page_size": 0}, "page_size=0 must be greater than or equal to 1"),
    "unknown key": ({"page": 3}, "unknown key 'page'; did you mean 'pages'?"),
    "another format": ({"format": 2}, "format=2 must be 1"),
}


@pytest.mark.parametrize(("changes", "message"), EDITED.values(), ids=EDITED)
def test_an_edited_file_that_cannot_be_meant_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(_file(**changes)))
    with pytest.raises(InputError) as error:
        read_schedule(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


BROKEN = {"no JSON": "{", "a list": "[]", "a key twice": '{"format": 1, "format": 1}', "binary": "\xff"}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_no_schedule_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"schedule file .*s\.json"):
        read_schedule(path)


def test_a_falling_schedule_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pages\[1\]=4"):
        write_schedule(tmp_path / "s.json", ScheduleFile(BudgetSchedule((8, 4)), "m", "s"))
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_file_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_schedule(tmp_path / "file" / "s.json", ScheduleFile(BudgetSchedule((8,)), "m", "s"))
