"""The same load again, from the gate's own records: arrivals, sizes, shared beginnings, no words.

A record (`observe.record`) holds when a request came, its tokens in and out, the cap its client
sent, and how many of its prompt tokens the server found in its cache. Text was never recorded, so it
is made up: a prompt takes its first `cached_tokens` from the latest earlier prompt of the same client
that is long enough, and goes on with words of its own. So a conversation's turns share what they
shared, and nothing else is shared.

By default an answer is made exactly as long as it was, by sending its length as the cap with
`ignore_eos`. With `as_asked` the client's own cap is sent, or none, and the model decides, except
that a twin is told the length: that is what an admission policy saw.
"""

from __future__ import annotations

import asyncio
import gzip
import random
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from gateway.lab import synthetic
from gateway.lab.caller import Caller, Shot
from gateway.lab.loads import rows
from gateway.tasks import spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

REMEMBERED = 64  # earlier prompts a client may share a beginning with: its open conversations


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a replay takes from a record. `at` is seconds from the first, sizes are tokens."""

    at: float
    client: str
    prompt: int
    output: int | None  # None: it never generated
    cap: int | None  # the client's own
    cached: int = 0


def read(path: Path) -> list[Recorded]:
    """The requests of a records file that had a countable prompt, in order of arrival. A compressed
    one (`records-2026-11-29.1.jsonl.gz`) is read as it is.

    Raises ValueError naming the line that is no record, or saying that there is none to replay.
    """
    found: list[tuple[datetime, Recorded]] = []
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = orjson.loads(line)
                prompt = record["prompt_tokens"]
                at = datetime.fromisoformat(record["at"])
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as problem:
                message = (
                    f"{path.name}, line {number}, is no record of kvgate's "
                    f"({type(problem).__name__}): it takes JSON with `at` and `prompt_tokens`"
                )
                raise ValueError(message) from None
            if prompt is not None:
                found.append((at, _recorded(record, int(prompt))))
    if not found:
        message = f"{path.name} holds no request whose prompt was counted: nothing to replay"
        raise ValueError(message)
    found.sort(key=lambda pair: pair[0])
    start = found[0][0]
    return [
        Recorded(
            (at - start).total_seconds(), one.client, one.prompt, one.output, one.cap, one.cached
        )
        for at, one in found
    ]


def _recorded(record: Mapping[str, Any], prompt: int) -> Recorded:
    return Recorded(
        at=0.0,
        client=str(record.get("client") or "anyone"),
        prompt=prompt,
        output=record.get("output_tokens"),
        cap=record.get("cap_asked"),
        cached=min(prompt, int(record.get("cached_tokens") or 0)),
    )


def texts(requests: Iterable[Recorded], seed: int = 0) -> Iterable[str]:
    """A message for each request, in order: see above how beginnings are shared."""
    rng = random.Random(seed)  # noqa: S311 - filler text, not secrets
    earlier: dict[str, list[tuple[str, ...]]] = {}
    for one in requests:
        size = max(1, one.prompt - synthetic.FRAME)
        shared = min(one.cached, size)
        known = earlier.setdefault(one.client, [])
        source = next((old for old in reversed(known) if len(old) >= shared), ())
        begun = source[:shared]
        chosen = begun + synthetic.words(size - len(begun), rng)
        known.append(chosen)
        del known[:-REMEMBERED]
        yield synthetic.sentence(chosen)


async def replay(
    url: str,
    requests: Sequence[Recorded],
    *,
    faster: float = 1.0,
    as_asked: bool = False,
    model: str = "default",
    headers: Mapping[str, str] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Any]:
    """Send every request when its time has come, whatever became of the ones before.

    `faster` divides the time between arrivals. Returns ``{"rows": [...], "config": ...}`` with a row
    a client; `progress` hears (ended, total).
    """
    over: list[Shot] = []

    def ended(shot: Shot) -> None:
        over.append(shot)
        progress(len(over), len(requests))

    loop = asyncio.get_running_loop()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        caller = Caller(session, url, model, ended)
        epoch = loop.time()
        flying: list[asyncio.Task[None]] = []
        try:
            for one, text in zip(requests, texts(requests, seed), strict=True):
                await asyncio.sleep(epoch + one.at / faster - loop.time())
                fields = _fields(one, as_asked=as_asked)
                sending = caller.send(Shot(one.client), text, fields, headers or {})
                flying.append(spawn(sending, "replay"))
            await asyncio.gather(*flying)
        finally:
            for task in flying:
                task.cancel()
    config = {"url": url, "faster": faster, "as_asked": as_asked, "seed": seed}
    return {"rows": rows(over), "config": config | {"requests": len(requests)}}


def _fields(one: Recorded, *, as_asked: bool) -> dict[str, Any]:
    if not as_asked and one.output is not None:
        return {"max_tokens": max(1, one.output), "ignore_eos": True}
    fields: dict[str, Any] = {} if one.cap is None else {"max_tokens": one.cap}
    if one.output is not None:
        fields["twin_output_tokens"] = max(1, one.output)
    return fields
