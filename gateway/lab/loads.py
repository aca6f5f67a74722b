"""Loads told in numbers: a row a group, a table of rows, and two results side by side.

Times in rows are seconds. A row of `all` stands for everything together. Errors are counted by
code: the gate's own words, the engine's status, or how the connection ended.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.lab.caller import Shot

ALL = "all"
COMPARED = (
    # heading, key, unit; less is better but for the first two
    ("served", "served", ""),
    ("tokens/s", "tokens_per_s", ""),
    ("errors", "errors_total", ""),
    ("TTFT p50", "ttft_p50", " s"),
    ("TTFT p99", "ttft_p99", " s"),
    ("TPOT p50", "tpot_p50", " s"),
    ("E2E p50", "e2e_p50", " s"),
    ("E2E p99", "e2e_p99", " s"),
)
NOTHING = "–"


def rows(shots: Sequence[Shot]) -> list[dict[str, Any]]:
    """One row a group in order of first appearance, then one for all where there are several."""
    groups: dict[str, list[Shot]] = {}
    for shot in shots:
        groups.setdefault(shot.group, []).append(shot)
    if len(groups) != 1:
        groups[ALL] = list(shots)
    return [_row(name, members) for name, members in groups.items()]


def _row(name: str, shots: Sequence[Shot]) -> dict[str, Any]:
    ended = [shot.ended for shot in shots if shot.ended is not None]
    seconds = max(ended) - min(shot.began for shot in shots) if ended else 0.0
    served = [shot for shot in shots if shot.served]
    errors = Counter(shot.error for shot in shots if shot.error is not None)
    tokens = sum(shot.tokens for shot in shots)
    prompts = [shot.prompt_tokens for shot in served if shot.prompt_tokens is not None]
    row: dict[str, Any] = {
        "group": name,
        "requests": len(shots),
        "served": len(served),
        "errors": dict(errors.most_common()),
        "errors_total": sum(errors.values()),
        "seconds": seconds,
        "prompt_tokens": sum(prompts),
        "output_tokens": tokens,
        "tokens_per_s": tokens / seconds if seconds > 0 else None,
    }
    for what in ("ttft", "tpot", "e2e"):
        values = [value for shot in served if (value := getattr(shot, what)) is not None]
        for level in (50, 99):
            row[f"{what}_p{level}"] = float(np.percentile(values, level)) if values else None
    return row


def table(result: Mapping[str, Any]) -> str:
    """The rows of a result for a terminal."""
    lines = [["", *(heading for heading, _, _ in COMPARED), "errors by code"]]
    for row in result["rows"]:
        codes = ", ".join(f"{code} {count}" for code, count in row["errors"].items())
        cells = [_number(row[key], unit) for _, key, unit in COMPARED]
        lines.append([row["group"], *cells, codes or NOTHING])
    return _aligned(lines)


def comparison(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Group by group, before → after and the change. Raises ValueError where no group is in both."""
    earlier = {row["group"]: row for row in before["rows"]}
    later = {row["group"]: row for row in after["rows"]}
    common = [name for name in earlier if name in later]
    if not common:
        message = "the two results have no group in common: were they the same load?"
        raise ValueError(message)
    lines = [["", "", "before", "after", "change"]]
    for name in common:
        for index, (heading, key, unit) in enumerate(COMPARED):
            old, new = earlier[name][key], later[name][key]
            cells = [_number(old, unit), _number(new, unit), _change(old, new)]
            lines.append([name if index == 0 else "", heading, *cells])
    return _aligned(lines)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}{unit}"


def _change(old: float | None, new: float | None) -> str:
    if old is None or new is None or old == new:
        return "" if old == new else NOTHING
    return NOTHING if old == 0 else f"{100 * (new / old - 1):+.0f} %"


def _aligned(lines: Iterable[Sequence[str]]) -> str:
    """Columns of equal width, the first to the left, a rule under the heading."""
    table = [list(line) for line in lines]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    out = []
    for line in table:
        cells = [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
        out.append("  ".join(cells).rstrip())
    out.insert(1, "─" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join(out)
