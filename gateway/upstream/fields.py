"""Readers for JSON that somebody else wrote: the value where it is what it should be, or nothing.

An engine that renames a field, sends null or a number as text must not stop the gate, so nothing
here raises.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Any

JsonDict = dict[str, Any]


def as_dict(value: object) -> JsonDict:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """The value where it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def as_flag(value: object, *, default: bool) -> bool:
    """The value where it is true or false, else `default`."""
    return value if isinstance(value, bool) else default


def as_int(value: object, *, at_least: int) -> int | None:
    """A whole number, also where it came as 2048.0 or "2048"; None below `at_least`."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
        value = int(value)
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if value >= at_least else None


def as_seconds(value: object) -> float | None:
    """Seconds since the epoch, from a number or an ISO 8601 text with its offset."""
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value).timestamp()
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(value)
            return seconds if math.isfinite(seconds) else None
    except (ValueError, OverflowError):
        return None
    return None


def as_positive(value: object) -> float | None:
    """A number above zero; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
