"""The page in a real browser: it renders, its script runs, it fetches nothing and logs no error."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparrow_core.report.report import Report

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    # Requests are logged, and none leaves the machine: neither the page's nor the browser's own.
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=2000"),
)
CLICKS = """<script>
document.getElementById("theme").click();
const [numbers, metrics] = document.querySelectorAll("table");
numbers.querySelectorAll("th button")[3].click();
metrics.querySelectorAll("th button")[4].click();
</script>"""


@dataclass(frozen=True, slots=True)
class Visit:
    dom: str
    console: list[str]
    requests: list[str]
    """Addresses that the page asked for, not those that the browser asks for by itself."""
    screenshot: Path

    @property
    def size(self) -> tuple[int, int]:
        width, height = struct.unpack(">II", self.screenshot.read_bytes()[16:24])
        return width, height


def _browser() -> str:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on PATH and CHROMIUM is not set")
    return found


def _visit(page: Path, directory: Path, width: int = 1280) -> Visit:
    directory.mkdir()
    net_log, screenshot = directory / "net.json", directory / "page.png"
    command = [
        *(_browser(), *FLAGS, f"--user-data-dir={directory / 'profile'}", f"--log-net-log={net_log}"),
        *(f"--window-size={width},1600", "--dump-dom", f"--screenshot={screenshot}", page.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Visit(done.stdout, console, _page_requests(net_log), screenshot)


def _page_requests(net_log: Path) -> list[str]:
    log = json.loads(net_log.read_text(encoding="utf-8"))
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    jobs = [e["params"] for e in log["events"] if e["type"] == start and "url" in e.get("params", {})]
    return [job["url"] for job in jobs if job.get("initiator") != "not an origin"]


def test_the_checks_see_a_page_that_fetches_and_fails(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<!DOCTYPE html><title>x</title><img src="http://192.0.2.1/a.png"><script>nothing()</script>')
    visit = _visit(page, tmp_path / "visit")
    assert visit.requests == ["http://192.0.2.1/a.png"]
    assert "nothing is not defined" in " ".join(visit.console)


@pytest.mark.parametrize("width", [1280, 500], ids=["desktop", "phone"])
def test_the_report_renders_without_network_or_errors(full_report: Report, tmp_path: Path, width: int) -> None:
    visit = _visit(full_report.html, tmp_path / "visit", width)
    assert visit.console == []
    assert visit.requests == []
    assert visit.size == (width, 1600)
    assert visit.screenshot.stat().st_size > 20_000
    assert visit.dom.count('<svg role="img"') == len(full_report.pngs)
    # The script has run: it shows the button that is hidden without it.
    assert re.search(r'<button id="theme" type="button">', visit.dom)


def test_the_page_is_not_wider_than_a_phone(full_report: Report, tmp_path: Path) -> None:
    probe = "<script>document.body.dataset.over = document.documentElement.scrollWidth - innerWidth;</script>"
    page = tmp_path / "probe.html"
    page.write_text(full_report.html.read_text(encoding="utf-8").replace("</body>", f"{probe}</body>"))
    assert 'data-over="0"' in _visit(page, tmp_path / "visit", width=500).dom


def test_a_heading_sorts_the_table_and_the_button_changes_the_theme(full_report: Report, tmp_path: Path) -> None:
    page = tmp_path / "clicked.html"
    page.write_text(full_report.html.read_text(encoding="utf-8").replace("</body>", f"{CLICKS}</body>"))
    visit = _visit(page, tmp_path / "visit")
    assert visit.console == []
    assert re.search(r'<html lang="en" data-theme="(dark|light)">', visit.dom)
    assert '<th scope="col" aria-sort="ascending"><button type="button">tokens</button>' in visit.dom
    body, metrics = visit.dom.split("<tbody>")[1:]
    tokens = [int(row.replace(",", "")) for row in re.findall(r"<tr>(?:<td[^>]*>[^<]*</td>){3}<td[^>]*>([\d,]+)", body)]
    assert len(tokens) > 50
    assert tokens == sorted(tokens)
    assert '<th scope="col" aria-sort="ascending"><button type="button">last</button>' in visit.dom
    last = [float(x) for x in re.findall(r'<tr>(?:<td[^>]*>[^<]*</td>){4}<td data-value="([^"]+)"', metrics)]
    assert len(last) > 20
    assert last == sorted(last)
