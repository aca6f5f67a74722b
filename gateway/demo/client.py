"""One streamed chat over HTTP, seen by the one who asked.

An answer is whole only with its end mark. A stream that stops without one was cut short; a
connection that breaks before the first word failed; a status other than 200 is a refusal, and its
words are kept if it is the gate's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import aiohttp
import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.demo.clock import BoxClock
    from gateway.demo.script import Question

ROUTE = "/v1/chat/completions"
OK = 200
_WORD = b'"content":"'
_DONE = b"data: [DONE]"
_ERROR = b'data: {"error"'
_TAIL = 16  # bytes kept to find what lies across two reads: longer than any of the three


class Ending(StrEnum):
    """How a request ended for the one who asked."""

    SERVED = "served"
    CUT = "cut short"
    REFUSED = "refused"
    FAILED = "failed"
    OPEN = "still open"  # when the act ended


@dataclass(slots=True)
class Exchange:
    """One request. Times are box seconds since the act began, sizes tokens."""

    began: float
    prompt: int
    cap: int | None  # what was asked
    server: str
    first: float | None = None  # when the first word came
    ended: float | None = None
    tokens: int = 0
    ending: Ending = Ending.OPEN
    status: int | None = None
    code: str | None = None  # of a refusal
    words: str = ""  # of a refusal
    retry_after: float | None = None  # seconds of the clock of whoever said it
    cap_told: int | None = None  # x-kvgate-max-tokens


@dataclass(frozen=True, slots=True)
class Asker:
    """Sends questions. `first_word` and `ended` are told of each exchange, each at most once."""

    session: aiohttp.ClientSession
    clock: BoxClock
    first_word: Callable[[Exchange], None]
    ended: Callable[[Exchange], None]

    async def ask(
        self, url: str, exchange: Exchange, question: Question, headers: Mapping[str, str]
    ) -> None:
        """Ask once and fill `exchange`. Raises nothing but cancellation, which leaves it open."""
        try:
            async with self.session.post(
                url + ROUTE,
                data=orjson.dumps(question.body),
                headers={"content-type": "application/json", **headers},
            ) as reply:
                exchange.status = reply.status
                if reply.status == OK:
                    await self._read(reply, exchange)
                else:
                    await _refusal(reply, exchange)
        except (aiohttp.ClientError, OSError):
            exchange.ending = Ending.FAILED if exchange.first is None else Ending.CUT
        finally:
            exchange.ended = self.clock.now()
            self.ended(exchange)

    async def _read(self, reply: aiohttp.ClientResponse, exchange: Exchange) -> None:
        exchange.server = reply.headers.get("x-kvgate-backend", exchange.server)
        told = reply.headers.get("x-kvgate-max-tokens")
        exchange.cap_told = None if told is None else int(told)
        words, tail = 0, b""
        done = broken = False
        async for data in reply.content.iter_any():
            words += (tail[1 - len(_WORD) :] + data).count(_WORD)  # none is seen twice
            seen = tail + data
            done = done or _DONE in seen
            broken = broken or _ERROR in seen
            tail = seen[-_TAIL:]
            exchange.tokens = max(0, words - 1)  # the first is the role's empty content
            if exchange.first is None and exchange.tokens:
                exchange.first = self.clock.now()
                self.first_word(exchange)
        whole = done and not broken
        exchange.ending = Ending.SERVED if whole else Ending.CUT


async def _refusal(reply: aiohttp.ClientResponse, exchange: Exchange) -> None:
    exchange.ending = Ending.REFUSED
    after = reply.headers.get("retry-after", "")
    exchange.retry_after = float(after) if after.isdigit() else None
    try:
        error = orjson.loads(await reply.read())["error"]
        exchange.code, exchange.words = str(error["code"]), str(error["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        exchange.code, exchange.words = str(reply.status), "no words"
