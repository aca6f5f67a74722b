"""One streamed chat sent to a server or a gate, timed as its client sees it.

An answer is whole only with its end mark `[DONE]` and no error event before it: what stops without
one was cut short, and that counts as an error under the name `cut`. Tokens are those of the
server's `usage`, and where it sends none, the pieces of text that came. No text is kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROUTE = "/v1/chat/completions"
OK = 200
CUT = "cut"  # the stream ended without its end mark
UNREACHABLE = "unreachable"  # no connection, or it broke before an answer


@dataclass(slots=True)
class Shot:
    """One request and what became of it. Times are seconds of the client's clock, sizes tokens."""

    group: str  # the point of a grid, or the client of a replay
    began: float = 0.0
    first: float | None = None  # first text
    ended: float | None = None
    status: int | None = None
    error: str | None = None  # the refusal's code, CUT, UNREACHABLE, or the bare status
    prompt_tokens: int | None = None  # as the server counted
    cached_tokens: int | None = None
    pieces: int = 0
    told_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return self.pieces if self.told_tokens is None else self.told_tokens

    @property
    def served(self) -> bool:
        """Whole, to the end mark."""
        return self.ended is not None and self.error is None

    @property
    def ttft(self) -> float | None:
        """Seconds to the first text."""
        return None if self.first is None else self.first - self.began

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for fewer than two."""
        if self.first is None or self.ended is None or self.tokens < 2:  # noqa: PLR2004
            return None
        return (self.ended - self.first) / (self.tokens - 1)

    @property
    def e2e(self) -> float | None:
        """Seconds from sending to the end."""
        return None if self.ended is None else self.ended - self.began


@dataclass(frozen=True, slots=True)
class Caller:
    """Sends to one URL. `ended` hears of every shot that is over."""

    session: aiohttp.ClientSession
    url: str
    model: str = "default"
    ended: Callable[[Shot], None] = lambda _shot: None

    async def send(
        self, shot: Shot, text: str, fields: Mapping[str, Any], headers: Mapping[str, str]
    ) -> None:
        """Ask once and fill `shot`. `fields` go into the body as they are. Raises nothing but
        cancellation."""
        clock = asyncio.get_running_loop().time
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        shot.began = clock()
        try:
            async with self.session.post(
                self.url.rstrip("/") + ROUTE,
                data=orjson.dumps(body),
                headers={"content-type": "application/json", **headers},
            ) as reply:
                shot.status = reply.status
                if reply.status == OK:
                    await _read(reply, shot)
                else:
                    shot.error = _code(await reply.read()) or str(reply.status)
        except (aiohttp.ClientError, OSError):
            shot.error = UNREACHABLE if shot.status is None else CUT
        finally:
            shot.ended = clock()
            self.ended(shot)


async def _read(reply: aiohttp.ClientResponse, shot: Shot) -> None:
    clock = asyncio.get_running_loop().time
    done = False
    rest = b""
    async for data in reply.content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            event = line[5:].strip()
            if event == b"[DONE]":
                done = True
            else:
                _hear(event, shot, clock())
    if not done and shot.error is None:
        shot.error = CUT


def _hear(event: bytes, shot: Shot, now: float) -> None:
    try:
        value = orjson.loads(event)
    except orjson.JSONDecodeError:
        return  # not ours to judge: what matters is whether the end mark comes
    if not isinstance(value, dict):
        return
    if "error" in value:
        shot.error = _code(event) or CUT
        return
    for choice in value.get("choices") or []:
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content"):
            shot.pieces += 1
            shot.first = now if shot.first is None else shot.first
    usage = value.get("usage")
    if isinstance(usage, dict):
        shot.prompt_tokens = usage.get("prompt_tokens")
        shot.told_tokens = usage.get("completion_tokens")
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            shot.cached_tokens = details.get("cached_tokens")


def _code(body: bytes) -> str | None:
    """The `code` (or `type`) of an error body in OpenAI's shape, or of SGLang's flat one."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    error = value.get("error", value) if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return None
    word = error.get("code") or error.get("type")
    return None if word is None else str(word)
