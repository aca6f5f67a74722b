"""`kvgate demo`: incident A on two modelled cards, without the gate and with it."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.usage import UsageError, writable
from gateway.demo import report
from gateway.demo.acts import play, staged
from gateway.demo.clock import SPEED
from gateway.demo.script import Script
from gateway.demo.tally import Tally, tally
from gateway.observe.log import configure

if TYPE_CHECKING:
    from gateway.demo.acts import Act

SECONDS = 600.0
"""Box seconds of each performance: the pool of a card takes seven minutes to run dry, and its server
a minute to come back. Twenty seconds of ours."""

LEAST_SECONDS = 60.0
"""Shortest show that still has its point: by then the agents have been promised more than the pool has,
which is what ends in the crash, at some 450 seconds."""

INTRO = """\
Two RTX 3090, one SGLang with a 27B model on each, modelled after a real box. Twelve people ask short
questions now and then. Eight agent requests at a time bring 19,000 tokens each, and no max_tokens or
32,000. Everything runs {speed:g} times faster than on the box; all times are the box's own seconds.
"""

NEXT = """\
In front of your own server:   kvgate serve --backend http://127.0.0.1:30000
"""


HELP = (
    f"box seconds of each act (default {SECONDS:g}; the crash comes at some 450, and from "
    f"{LEAST_SECONDS:g} on, the least, one sees what is promised)"
)


def run(argv: list[str]) -> int:
    """0 when the gate kept its promise: no crash, nothing thrown out."""
    p = argparse.ArgumentParser(prog="kvgate demo", description=__doc__)
    p.add_argument("--seconds", type=float, default=SECONDS, help=HELP)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path, metavar="PATH", help="write the numbers there")
    args = p.parse_args(argv)
    if not LEAST_SECONDS <= args.seconds < math.inf:
        words = f"--seconds takes {LEAST_SECONDS:g} or more, not {args.seconds:g}"
        print(f"kvgate demo: {words}: before that there is nothing to see", file=sys.stderr)  # noqa: T201
        return 2
    try:
        writable("--json", args.json)
    except UsageError as error:
        print(f"kvgate demo: {error}", file=sys.stderr)  # noqa: T201
        return 2
    handle, path = tempfile.mkstemp(prefix="kvgate-demo-", suffix=".log")
    with os.fdopen(handle, "w") as log:
        configure("info", log)
        _say(INTRO.format(speed=SPEED))
        columns = asyncio.run(_acts(Script(args.seconds, args.seed)))
        alone, without, gated = columns
        _say("")
        for death in without.deaths:
            _say(f"  without the gate, {death}")
        _say("")
        _say(report.table(columns))
        _say("")
        for sentence in report.sentences(without, gated):
            _say(sentence)
        _say("")
        _say(NEXT + f"The gate's own log of this show: {path}")
        configure()  # the file is about to be closed
    if args.json is not None:
        numbers = {"alone": alone, "without": without, "gate": gated}
        args.json.write_text(json.dumps({name: one.to_dict() for name, one in numbers.items()}))
    if (broken := report.verdict(gated)) is not None:
        print(broken, file=sys.stderr)  # noqa: T201
        return 1
    return 0


async def _acts(script: Script) -> list[Tally]:
    columns = []
    for title, gated, agents in (
        ("people alone", False, False),
        ("without the gate", False, True),
        ("with the gate", True, True),
    ):
        if not sys.stderr.isatty():
            _say(f"  now: {title} ({script.seconds / SPEED:.0f} s)")
        async with staged(title, script, SPEED, gated=gated) as act:
            await play(act, _progress, agents=agents)
            columns.append(tally(act))
        _end_line()
    return columns


def _progress(act: Act) -> None:
    """One line that moves, where there is somebody to look at it."""
    if not sys.stderr.isatty():
        return
    people = act.crowd.people
    answered = sum(one.ending.value == "served" for one in people)
    line = (
        f"{act.title:>16}  {act.clock.now():4.0f} s  {act.box.state()}  "
        f"people {answered} of {len(people)} answered  crashes {len(act.box.deaths())}"
    )
    print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)  # noqa: T201


def _end_line() -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)  # noqa: T201


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201
