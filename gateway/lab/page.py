"""One HTML file that holds a whole evaluation: pictures, tables, and the seven reporting items.

The items are those that a survey of admission papers found missing most (see AdmitPerf): without
them a number cannot be compared with anybody else's. The file needs no network and no script.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import orjson

from gateway.lab.pictures import Bar, bars
from gateway.lab.tables import NOTHING, lines, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PICTURES = (
    ("goodput_rps", "goodput, requests/s served in time"),
    ("kv_utilisation", "KV in use, share of the pool"),
    ("ttft_p99", "TTFT, 99 of 100, s"),
    ("retractions_per_1000", "retractions per 1000 requests"),
    ("crashes", "crashes"),
    ("retractions_per_1000_after", "retractions per 1000 since outputs doubled"),
    ("victim_ttft_p99_vs_alone", "victims' TTFT p99, times that when alone"),
    ("runaway_vs_vtc", "runaway's tokens, times those under VTC"),
    ("jain", "Jain's index of the backlogged clients"),
)

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1180px;padding:0 1rem;
color:#1c1e21;background:#fff}
h1,h2,h3{line-height:1.2}table{border-collapse:collapse;margin:.5rem 0 1.5rem}
td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}
td:first-child,th:first-child,td.words{text-align:left}svg{max-width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:#1c1e21}svg .title{font-weight:600}
svg .label{text-anchor:end}.bar{fill:#9db4c8}.ours{fill:#1f6f43}
.whisker{stroke:#1c1e21;fill:none}.halo{stroke:#fff;stroke-width:3;fill:none;opacity:.7}
.wide{overflow-x:auto}.pictures{display:flex;flex-wrap:wrap;gap:.5rem 1.5rem}
pre{background:#f5f6f7;padding:1rem;overflow:auto;font-size:12px}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#e6e6e6}
td,th{border-color:#3a3d42}svg text{fill:#e6e6e6}.whisker{stroke:#e6e6e6}.halo{stroke:#16181b}
.bar{fill:#50667a}.ours{fill:#4fae7d}pre{background:#22252a}}
"""


def page(result: Mapping[str, Any], *, when: str, machine: str, wall_s: float) -> str:
    """The whole document. `wall_s` is how long the evaluation took, seconds."""
    config = result["config"]
    title = (
        f"<p>kvgate {escape(config['kvgate'])}, {escape(when)}, {escape(machine)}; "
        f"{config['seeds']} seeds, {wall_s:.0f} s. Bars are medians over seeds, whiskers their "
        "95&#8239;% intervals. Every policy of a seed saw the same arrivals. Simulated: a model of "
        "SGLang's scheduler in virtual time.</p>"
    )
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>kvgate evaluate</title>',
        f"<style>{STYLE}</style><h1>kvgate evaluate</h1>",
        title,
    ]
    for name, about in config["scenarios"].items():
        story = about["story"][:1].upper() + about["story"][1:]
        parts.append(f"<h2>{escape(name)}</h2><p>{escape(story)}. {escape(load(about['box']))}</p>")
        head, *body = lines(result, name, intervals=False)
        parts.append(f'<div class="wide">{_table(head, body)}</div>')
        parts.append('<div class="pictures">' + "".join(_pictures(result, name)) + "</div>")
        parts.append(_all_rows(result, name))
    parts += [
        "<h2>What it takes to believe this</h2>",
        '<div class="wide">',
        *_items(config),
        "</div>",
        "</html>",
    ]
    return "\n".join(parts)


def _pictures(result: Mapping[str, Any], name: str) -> Iterable[str]:
    for metric, title in PICTURES:
        items = [
            Bar(row["policy"], row["median"], row["low"], row["high"], row["policy"] == "kvgate")
            for row in result["rows"]
            if (row["scenario"], row["metric"]) == (name, metric) and row["median"] is not None
        ]
        if any(item.high > 0 for item in items):
            yield bars(title, items)


def _all_rows(result: Mapping[str, Any], name: str) -> str:
    rows = [row for row in result["rows"] if row["scenario"] == name and row["median"] is not None]
    numbers = [
        [
            row["policy"],
            row["metric"],
            *(f"{row[key]:.4g}" for key in ("median", "low", "high")),
            str(row["seeds"]),
        ]
        for row in rows
    ]
    heading = ["policy", "metric", "median", "low", "high", "seeds"]
    return f"<details><summary>All numbers</summary>{_table(heading, numbers)}</details>"


def _items(config: Mapping[str, Any]) -> Iterable[str]:
    scenarios = config["scenarios"]
    yield f"<h3>1. Load relative to measured capacity</h3><p>Measured: {escape(config['calibration'])}.</p>"
    yield _table(
        ["scenario", "offered/s", "capacity/s", "load", "capacity in time/s", "load in time"],
        [[name, *_numbers(about["box"], _LOAD)] for name, about in scenarios.items()],
    )
    yield "<h3>2. Deadlines relative to unloaded latency</h3>"
    yield _table(
        [
            "scenario",
            *("TTFT p50 s", "TTFT p90 s", "objective s", "× p90"),
            *("TPOT p50 s", "TPOT p90 s", "objective s", "× p90"),
        ],
        [[name, *_deadlines(about)] for name, about in scenarios.items()],
    )
    yield "<h3>3. Observed range of each signal a policy reads</h3>"
    yield _table(
        ["scenario", "policy", "signal it reads", "least", "median", "most"],
        list(_ranges(config["signals"])),
    )
    yield (
        f"<h3>4. Repeats and spread</h3><p>{config['seeds']} seeds; the interval is the 95&#8239;% "
        "bootstrap interval of the median (1000 resamples). With one seed it is the value.</p>"
        "<h3>5. Where each parameter came from</h3>"
    )
    yield _table(
        ["scenario", "policy", "parameter", "value", "origin", "source"],
        [
            [name, policy, parameter, f"{one['value']:g}", one["origin"], one["source"]]
            for name, policies in config["parameters"].items()
            for policy, parameters in policies.items()
            for parameter, one in parameters.items()
        ],
    )
    yield "<h3>6. What the metrics mean</h3>"
    yield _table(
        ["metric", "definition"],
        [
            [name, what + (f" ({config['absent'][name]})" if name in config["absent"] else "")]
            for name, what in config["metrics"].items()
        ],
    )
    yield "<h3>7. Full configuration</h3><details><summary>JSON</summary><pre>"
    yield escape(orjson.dumps(config, option=orjson.OPT_INDENT_2).decode()) + "</pre></details>"


_LOAD = ("offered_rps", "capacity_rps", "load", "in_time_rps", "load_in_time")


def _deadlines(about: Mapping[str, Any]) -> list[str]:
    box = about["box"]
    out: list[str] = []
    for what in ("ttft", "tpot"):
        out += _numbers(box, (f"{what}_p50", f"{what}_p90"))
        out += [f"{about[f'{what}_s']:g}", f"{box[f'{what}_objective_over_p90']:.1f}"]
    return out


def _numbers(values: Mapping[str, float], names: Sequence[str]) -> list[str]:
    return [f"{values[name]:.3g}" for name in names]


def _ranges(signals: Mapping[str, Any]) -> Iterable[list[str]]:
    for scenario, policies in signals["ranges"].items():
        for policy, seen in policies.items():
            family = "fixed" if policy.startswith("fixed-") else policy
            for signal in signals["read_by"][family]:
                if signal in seen:
                    yield [scenario, policy, signal, *(f"{one:.3g}" for one in seen[signal])]


def _table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join("<tr>" + "".join(_td(cell) for cell in line) + "</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"


def _td(cell: str) -> str:
    """A cell: words to the left, numbers to the right."""
    number = cell[:1].isdigit() or cell.startswith(("-", NOTHING))
    return f"<td>{escape(cell)}</td>" if number else f'<td class="words">{escape(cell)}</td>'
