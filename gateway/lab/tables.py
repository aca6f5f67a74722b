"""Results for people: plain text for a terminal, Markdown for a document. One table a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = (
    # heading, metric, decimals
    ("goodput/s", "goodput_rps", 3),
    ("of oracle", "goodput_vs_oracle", 2),
    ("KV used", "kv_utilisation", 2),
    ("retracted/1000", "retractions_per_1000", 1),
    ("crashes", "crashes", 0),
    ("refused", "refused_share", 2),
    ("TTFT p99 s", "ttft_p99", 1),
    ("cache hits", "cache_hit_share", 2),
    ("victims p99 /alone", "victim_ttft_p99_vs_alone", 2),
    ("runaway /VTC", "runaway_vs_vtc", 2),
    ("retracted after shift", "retractions_per_1000_after", 1),
    ("Jain", "jain", 3),
    ("retry ok", "retry_first_try", 2),
    ("TTFT MAPE", "ttft_mape", 2),
    ("below q95", "ttft_q95_coverage", 3),
)
NOTHING = "–"


def text(result: Mapping[str, Any]) -> str:
    """Every scenario as an aligned table under its story."""
    parts = []
    for name, about in result["config"]["scenarios"].items():
        cells = lines(result, name, intervals=False)
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        parts.append(f"{name}: {about['story']}\n{load(about['box'])}")
        for number, line in enumerate(cells):
            aligned = [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
            parts.append("  " + "  ".join(aligned))
            if number == 0:
                parts.append("  " + "─" * (sum(widths) + 2 * len(widths) - 2))
        parts.append("")
    return "\n".join(parts)


def markdown(result: Mapping[str, Any], *, when: str, machine: str) -> str:
    """The same with 95 % intervals, and where and when it was measured."""
    config = result["config"]
    quick = ", quick" if config["quick"] else ""
    how = f"{config['seeds']} seeds, medians with 95 % intervals{quick}"
    parts = [f"kvgate {config['kvgate']}, {when}, {machine}: {how}.", ""]
    for name, about in config["scenarios"].items():
        head, *body = lines(result, name, intervals=True)
        parts += [f"**{name}** — {about['story']}. {load(about['box'])}", ""]
        parts.append("| " + " | ".join(head) + " |")
        parts.append("|---|" + "---:|" * (len(head) - 1))
        parts += ["| " + " | ".join(line) + " |" for line in body]
        parts.append("")
    return "\n".join(parts)


def load(box: Mapping[str, float]) -> str:
    """One sentence: what was offered, and how much that is for the box."""
    return (
        f"Offered {box['offered_rps']:.3g} requests/s, {box['load']:.2f} times the measured capacity "
        f"({box['capacity_rps']:.3g}/s)."
    )


def lines(result: Mapping[str, Any], name: str, *, intervals: bool) -> list[list[str]]:
    """Heading and one line a policy; columns that no policy has are left out."""
    rows = {
        (row["policy"], row["metric"]): row for row in result["rows"] if row["scenario"] == name
    }
    policies = [policy for policy in result["config"]["policies"] if (policy, "crashes") in rows]
    shown = [
        column
        for column in COLUMNS
        if any(value(rows, policy, column[1]) is not None for policy in policies)
    ]
    out = [["policy", *(heading for heading, _, _ in shown)]]
    for policy in policies:
        cells = [
            _cell(rows.get((policy, metric)), places, intervals) for _, metric, places in shown
        ]
        out.append([policy, *cells])
    return out


def value(
    rows: Mapping[tuple[str, str], Mapping[str, Any]], policy: str, metric: str
) -> float | None:
    """The median of one metric of one policy, None where it has none."""
    row = rows.get((policy, metric))
    return None if row is None or row["median"] is None else float(row["median"])


def _cell(row: Mapping[str, Any] | None, places: int, intervals: bool) -> str:  # noqa: FBT001 - private
    if row is None or row["median"] is None:
        return NOTHING
    middle = f"{row['median']:.{places}f}"
    if not intervals or row["low"] == row["high"]:
        return middle
    return f"{middle} ({row['low']:.{places}f}–{row['high']:.{places}f})"
