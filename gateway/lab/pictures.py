"""Bars with whiskers as SVG text: no library, no script, nothing fetched from anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 560  # px, two pictures side by side on a laptop
LABEL = 150
NUMBER = 70  # room for the number behind the longest bar
LINE = 22
BAR = 14
TOP = 26


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar with its interval; `strong` draws it in the accent colour."""

    label: str
    middle: float
    low: float
    high: float
    strong: bool = False


def bars(title: str, items: Sequence[Bar]) -> str:
    """An SVG element: one horizontal bar an item, all on one scale from zero."""
    height = TOP + LINE * len(items) + 4
    most = max((item.high for item in items), default=0.0) or 1.0
    scale = (WIDTH - LABEL - NUMBER) / most
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg {size} role="img" aria-label="{escape(title)}">',
        f'<text x="0" y="16" class="title">{escape(title)}</text>',
    ]
    for index, item in enumerate(items):
        y = TOP + LINE * index
        middle = y + BAR / 2
        low, high = LABEL + item.low * scale, LABEL + item.high * scale
        whisker = f"M{low:.1f} {middle}H{high:.1f}M{low:.1f} {y + 3}v8M{high:.1f} {y + 3}v8"
        kind = "bar ours" if item.strong else "bar"
        parts.append(
            f'<text x="{LABEL - 8}" y="{y + 11}" class="label">{escape(item.label)}</text>'
            f'<rect x="{LABEL}" y="{y}" width="{max(0.0, item.middle * scale):.1f}" '
            f'height="{BAR}" class="{kind}"/>'
            f'<path d="{whisker}" class="halo"/><path d="{whisker}" class="whisker"/>'
            f'<text x="{high + 6:.1f}" y="{y + 11}">{item.middle:.3g}</text>'
        )
    parts.append("</svg>")
    return "".join(parts)
