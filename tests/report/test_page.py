"""The page's structure: complete in itself, every figure described, only sections with data drawn."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sparrow_core.report.report import Report, write_report

VOID = {"meta", "link", "br", "img", "input", "hr"}
FIGURES = ["tail", "acceptance", "schedules", "cost-tail", "loop", "training", "tails", "metrics", "time"]


class Page(HTMLParser):
    """Ids, figures, table rows and addresses of a page; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.addresses: list[str] = []
        self.texts: dict[str, str] = {}
        self.figures: list[str] = []
        self.svgs: list[dict[str, str | None]] = []
        self._id = ""
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        self._id = values.get("id") or ""
        self.labels += str(values.get("aria-labelledby") or "").split()
        self.addresses += [str(values[name]) for name in ("href", "src", "action", "data") if values.get(name)]
        if tag == "figure":
            self.figures.append(str(values["id"]))
        if tag == "svg":
            self.svgs.append(values)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._id:
            self.texts[self._id] = self.texts.get(self._id, "") + data


def _page(report: Report) -> Page:
    return Page(report.html.read_text(encoding="utf-8"))


def test_nothing_is_fetched(full_report: Report) -> None:
    text = full_report.html.read_text(encoding="utf-8")
    assert "://" not in text
    assert "@import" not in text
    assert all(address.startswith(("#", "data:")) for address in _page(full_report).addresses)
    assert not re.search(r"url\((?!#)", text)


def test_ids_are_distinct_and_references_lead_somewhere(full_report: Report) -> None:
    page = _page(full_report)
    assert len(set(page.ids)) == len(page.ids)
    local = {address[1:] for address in page.addresses if address.startswith("#")}
    text = full_report.html.read_text(encoding="utf-8")
    assert local | set(re.findall(r"url\(#([^)]+)\)", text)) | set(page.labels) <= set(page.ids)


def test_every_figure_has_a_title_and_a_description(full_report: Report) -> None:
    page = _page(full_report)
    assert len(page.svgs) == len(page.figures) > 5
    for svg in page.svgs:
        assert svg["role"] == "img"
        title, description = str(svg["aria-labelledby"]).split()
        assert len(page.texts[title]) > 5
        assert len(page.texts[description]) > 20


@pytest.mark.parametrize("kind", FIGURES)
def test_every_kind_of_figure_is_there_and_as_png(full_report: Report, kind: str) -> None:
    names = [name for name in _page(full_report).figures if name.startswith(kind)]
    assert names
    for name in names:
        png = full_report.html.with_name(f"report-{name}.png")
        assert png in full_report.pngs
        assert png.read_bytes().startswith(b"\x89PNG")
    assert full_report.missing == ()


def test_the_ink_follows_the_theme(full_report: Report) -> None:
    text = full_report.html.read_text(encoding="utf-8")
    svgs = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert all("currentColor" in svg and "#123457" not in svg for svg in svgs)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_the_table_has_a_row_per_configuration_and_bin(full_report: Report) -> None:
    budgets, selectors, bins = 8, 2, 4
    calibration = selectors * (budgets + 1) * bins
    others = 3 * bins
    training = 2 * (bins - 1)
    text = full_report.html.read_text(encoding="utf-8")
    numbers = text[text.index('<h2 id="section-all-numbers">') : text.index('<h2 id="section-all-metrics">')]
    assert numbers.count("<tr>") == 1 + calibration + others + training


def test_text_from_files_is_escaped(full_report: Report) -> None:
    text = full_report.html.read_text(encoding="utf-8")
    assert "only &lt;few&gt; tokens" in text
    assert "<few>" not in text


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        pytest.param("measured", ["Budget schedules", "Budgets over time"], id="measured rollout"),
        pytest.param("calibration", ["Budgets over time"], id="calibration"),
        pytest.param("replay", ["Acceptance histogram"], id="replay"),
        pytest.param("training", ["Acceptance histogram"], id="training run"),
    ],
)
def test_what_is_missing_is_said_with_the_command_that_makes_it(
    run_dirs: dict[str, Path], tmp_path: Path, kind: str, missing: list[str]
) -> None:
    report = write_report([run_dirs[kind]], tmp_path / "r.html")
    assert list(report.missing) == missing
    said = re.findall(r'<p class="missing">(.*?)</p>', report.html.read_text(encoding="utf-8"))
    assert len(said) == len(missing)
    assert all("sparrow " in sentence for sentence in said)
    _page(report)


def test_the_same_runs_give_the_same_page(run_dirs: dict[str, Path], tmp_path: Path) -> None:
    first, again = (write_report([run_dirs["measured"]], tmp_path / name / "r.html") for name in "ab")
    assert first.html.read_bytes() == again.html.read_bytes()
