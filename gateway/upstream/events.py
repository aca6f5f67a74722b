"""Server-sent events as engines write them: where one ends, and what is in it.

Line ends are LF or CRLF. A lone CR, which the standard also allows, is sent by no engine.
"""

from __future__ import annotations

import re

import orjson

EVENT_CAP = 64 * 1024
"""Bytes of one event. A chat event is 0.3 KiB; /generate repeats the whole text in each and
passes this at some 10,000 tokens."""

BOUNDARY = re.compile(rb"\n\r?\n")
SOME_CHOICE = re.compile(rb'"choices": ?\[\s*[^\s\]]')
"""Not in the event that has only usage in it."""


def is_one_line(event: bytes) -> bool:
    """Whether an event is one line of JSON data, as all engines write it."""
    return event.startswith(b"data: {") and event.count(b"\n") == 2  # noqa: PLR2004


def payload_of(event: bytes) -> bytes | None:
    """The data of an event, its lines joined; None where it has none (a comment, a blank)."""
    lines = [
        line[6:] if line.startswith(b"data: ") else line[5:]
        for line in event.replace(b"\r\n", b"\n").split(b"\n")
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


def parse(payload: bytes) -> object:
    """What the data of an event says; None where it is no JSON."""
    try:
        document: object = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    return document
