"""How figures look, and how they become inline SVG and PNG.

Ink is drawn in one reserved color that the inline SVG replaces by ``currentColor``, so a figure follows the page's
light or dark theme; the other colors are mid-tones that stand out on both.
"""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import Any, Literal, overload

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure

_INK = "#123457"
MUTED = "#8a8f98"
TAU = "#e0453a"
_CATEGORIES = ("#2f81d6", "#d9722b", "#2e9e6b", "#b35fc4", "#b58a12", "#5f74d8", "#c4527f", "#4a9aa8")
_ORDERED = LinearSegmentedColormap.from_list("ordered", ["#7b6fe0", "#2f8fc4", "#2aa385", "#9aa02a", "#e08a2a"])
_SETTINGS: dict[Any, Any] = {
    "font.size": 10.5,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": MUTED,
    "grid.alpha": 0.25,
    "legend.labelcolor": _INK,
}


@overload
def new_figure(*, height: float = ..., has_axis: Literal[True] = ...) -> tuple[Figure, Axes]: ...
@overload
def new_figure(*, height: float = ..., has_axis: Literal[False]) -> tuple[Figure, None]: ...
def new_figure(*, height: float = 3.6, has_axis: bool = True) -> tuple[Figure, Axes | None]:
    """A figure as wide as a phone's screen can show with readable text; call within ``drawing()``."""
    figure = Figure(figsize=(5.6, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots() if has_axis else None


def drawing(name: str) -> AbstractContextManager[None]:
    """Context in which figures are drawn and rendered; ``name`` keeps ids apart between figures of one page."""
    return matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name})


def series_colors(count: int, *, is_ordered: bool = False) -> list[str]:
    """Colors of ``count`` series: a ramp when their order means something."""
    if is_ordered:
        return [to_hex(_ORDERED(x)) for x in np.linspace(0, 1, max(count, 2))[:count]]
    return [_CATEGORIES[index % len(_CATEGORIES)] for index in range(count)]


def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """An ``<svg>`` element for an HTML page: no address in it, no id that another figure could have."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    view_box = re.search(r'viewBox="[^"]*"', text)
    assert view_box is not None
    opening = (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" {view_box[0]} preserveAspectRatio="xMidYMid meet">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    text = opening + text[text.index(">") + 1 :]
    text = re.sub(r'(<g) id="[^"]*"', r"\1", text).replace("xlink:href", "href")
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return _unique_ids(text, name).replace(_INK, "currentColor").strip()


def _unique_ids(svg: str, name: str) -> str:
    """Every id that is referred to gets the figure's name before it; the rest are dropped."""
    used = set(re.findall(r'href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg))

    def renamed(match: re.Match[str]) -> str:
        own = match[1].startswith(f"{name}-")
        return match[0] if own else f' id="{name}-{match[1]}"' if match[1] in used else ""

    svg = re.sub(r' id="([^"]+)"', renamed, svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)


def save_png(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=150, facecolor="white")
