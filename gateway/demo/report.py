"""The numbers as a table and three sentences that a person understands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.demo.tally import Side, Tally

Row = tuple[str, "Callable[[Tally], str]"]


def table(columns: Sequence[Tally]) -> str:
    """One column a performance."""
    rows: list[tuple[str, list[str]]] = [("", [column.title for column in columns])]
    for heading, lines in _SECTIONS:
        rows.append((heading, [""] * len(columns)))
        rows.extend((f"  {name}", [cell(column) for column in columns]) for name, cell in lines)
    label = max(len(name) for name, _ in rows)
    widths = [max(len(cells[i]) for _, cells in rows) for i in range(len(columns))]
    out = []
    for name, cells in rows:
        padded = "   ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        out.append(f"{name.ljust(label)}   {padded}".rstrip())
    out.insert(1, "─" * max(len(line) for line in out))
    return "\n".join(out)


def sentences(without: Tally, gated: Tally) -> list[str]:
    """What happened, in plain words."""
    ratio = without.promised / max(1, without.pool)
    bad = (
        f"Without the gate the agents were promised {without.promised:,} tokens of a pool of "
        f"{without.pool:,} ({ratio:.1f} times what there is): {_times(without.crashes)}, "
        f"{without.down_s:.0f} s of no service, {_spoilt(without.people)} of "
        f"{without.people.asked} questions of people came to nothing."
    )
    good = (
        f"With the gate never more than {gated.promised:,} of {gated.pool:,} was promised: "
        f"{_times(gated.crashes)}, {gated.retractions} requests thrown out half done, and people "
        f"waited {gated.people.wait_p50:.1f} s for the first word (99 of 100: "
        f"{gated.people.wait_p99:.1f} s)."
    )
    agents = (
        f"The agents got {gated.agents.tokens:,} tokens instead of {without.agents.tokens:,}; what "
        "did not fit waited its turn or was told when to come back."
    )
    return [bad, good, agents]


def verdict(gated: Tally) -> str | None:
    """Why the promise was not kept, or None."""
    if gated.crashes:
        return f"With the gate a server died ({_times(gated.crashes)}): the promise was not kept."
    if gated.retractions:
        return (
            f"With the gate {gated.retractions} requests were thrown out half done: the promise "
            "was not kept."
        )
    return None


def _times(crashes: int) -> str:
    return {0: "no crash", 1: "one crash"}.get(crashes, f"{crashes} crashes")


def _spoilt(side: Side) -> int:
    return side.asked - side.served - side.open


def _side_rows(pick: Callable[[Tally], Side]) -> list[Row]:
    return [
        ("asked", lambda t: f"{pick(t).asked}"),
        ("answered", lambda t: f"{pick(t).served}"),
        ("cut short", lambda t: f"{pick(t).cut}"),
        ("failed or refused", lambda t: f"{pick(t).failed + pick(t).refused}"),
        ("still at work at the end", lambda t: f"{pick(t).open}"),
    ]


_SECTIONS: list[tuple[str, list[Row]]] = [
    (
        "people (short questions now and then)",
        [
            *_side_rows(lambda t: t.people),
            ("wait for the first word, median", lambda t: f"{t.people.wait_p50:.1f} s"),
            ("... 99 of 100", lambda t: f"{t.people.wait_p99:.1f} s"),
        ],
    ),
    (
        "agents (19,000 tokens, no limit, at once)",
        [
            *_side_rows(lambda t: t.agents),
            ("tokens written for them", lambda t: f"{t.agents.tokens:,}"),
        ],
    ),
    (
        "servers",
        [
            ("crashes", lambda t: f"{t.crashes}"),
            ("no service", lambda t: f"{t.down_s:.0f} s"),
            ("requests thrown out half done", lambda t: f"{t.retractions}"),
            ("longest queue inside an engine", lambda t: f"{t.queue_inside}"),
            ("most tokens promised at once", lambda t: f"{t.promised:,}"),
            ("... to a pool of", lambda t: f"{t.pool:,}"),
        ],
    ),
]
