"""What one process says of itself to the others, as bytes: JSON, ages instead of times, no word of any
request.

What is not in this form is refused as a whole, and so is a number that cannot be: it would be counted.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from gateway.core.others import Strikes, Use, Words
from gateway.lease.store import LONGEST_DOCUMENT, LONGEST_S, Said, StoreError

FORM = "kvgate-common-1"

MOST_TOKENS = 2**53
"""What JSON's readers hold exactly, and not in a thousand years the tokens of a client. Sums of larger ones
could not be told: /events would end, for everybody who looks."""


def encode(words: Words, now: float) -> bytes:
    """The document of `words`."""
    return orjson.dumps(
        {
            "form": FORM,
            "lasts": words.until - now,
            "clients": {
                who: [
                    use.used,
                    None if use.began is None else now - use.began,
                    use.under_way,
                    use.held,
                ]
                for who, use in words.clients.items()
            },
            "strikes": {
                mark.hex(): [one.deaths, now - one.last, one.start]
                for mark, one in words.strikes.items()
            },
            "served": {mark.hex(): now - at for mark, at in words.served.items()},
        }
    )


def decode(said: Said, now: float) -> Words:
    """What was said, by the clock of who reads it. Raises StoreError where it is nothing of ours."""
    at = now - said.age_s
    if len(said.document) > LONGEST_DOCUMENT:
        msg = "what another process says of itself is too long"
        raise StoreError(msg)
    try:
        data = orjson.loads(said.document)
        if data["form"] != FORM:
            msg = f"another gate speaks {str(data['form'])[:40]!r}; this one knows {FORM}"
            raise StoreError(msg)
        return Words(
            at=at,
            until=at + min(_span(data["lasts"]), LONGEST_S),
            clients={str(who): _use(row, at) for who, row in data["clients"].items()},
            strikes={
                bytes.fromhex(mark): Strikes(_count(row[0]), at - _span(row[1]), str(row[2]))
                for mark, row in data["strikes"].items()
            },
            served={bytes.fromhex(mark): at - _span(age) for mark, age in data["served"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        msg = "what another process says of itself cannot be understood"
        raise StoreError(msg) from error


def _use(row: list[Any], at: float) -> Use:
    used, age, under_way, held = row
    began = None if age is None else at - _span(age)
    return Use(_count(used), began, _count(under_way), _count(held))


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MOST_TOKENS:
        raise ValueError(value)
    return value


def _span(value: object) -> float:
    """Seconds."""
    if not isinstance(value, float | int) or not math.isfinite(value) or value < 0:
        raise ValueError(value)
    return float(value)
