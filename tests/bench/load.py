"""A closed-loop load on a raw protocol: so many connections, each asks again when answered."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import count

import httptools

from tests.bench.processes import cpu_s

BODY_BYTES = 2000
"""Of a request: a short chat with its system prompt. What is said last is new in each request."""


@dataclass
class Seen:
    """What came of a load. Seconds."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    latencies: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    chunks: int = 0
    errors: int = 0

    def quantile_ms(self, q: float) -> float:
        return quantile(self.latencies, q) * 1000


def quantile(values: list[float], q: float) -> float:
    """Nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


class Message:
    """A chat of about `size` bytes: a history that is always the same, and a last turn of a fifth of
    it that never was sent before, as agents send them. `fresh`: all of it is new each time."""

    _number = count()

    def __init__(
        self,
        *,
        stream: bool,
        size: int = BODY_BYTES,
        fresh: bool = False,
    ) -> None:
        new = size if fresh else size // 5
        said = {
            "system": "You are a helpful assistant. " * ((size - new) // 87),
            "user": "Where did the river begin? " * ((size - new) // 81),
            "assistant": "It began in the hills. " * ((size - new) // 69),
        }
        chat = {
            "model": "m",
            "max_tokens": 100,
            "messages": [{"role": role, "content": text} for role, text in said.items()],
        }
        if stream:
            chat["stream"] = True
        chat["messages"].append(
            {"role": "user", "content": "@" + "so tell me more of it " * (new // 22)}
        )
        body = json.dumps(chat, separators=(",", ":")).encode()
        before, _, after = body.partition(b"@")
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            "authorization: Bearer nobody\r\nuser-agent: bench\r\naccept: */*\r\n"
            f"content-length: {len(body) + 15}\r\n\r\n"
        )
        self._before, self._after = head.encode() + before, after
        self.body_bytes = len(body) + 15

    def next(self) -> bytes:
        """One more."""
        return b"%b%016d%b" % (self._before, next(self._number), self._after)


class Connection(asyncio.Protocol):
    """Asks again as soon as it is answered, until `until`."""

    def __init__(self, message: Message, until: float, seen: Seen) -> None:
        self.message, self.until, self.seen = message, until, seen
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.asked = time.perf_counter()
        self.transport.write(self.message.next())

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.seen.chunks += data.count(b"\n\n")  # as the server wrote them, however they came

    def on_message_complete(self) -> None:
        self.seen.errors += self.parser.get_status_code() != 200
        self.seen.latencies.append(time.perf_counter() - self.asked)
        if time.perf_counter() < self.until:
            asyncio.get_running_loop().call_soon(self.ask)
        else:
            self.transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class Probe(asyncio.Protocol):
    """Asks for a page that costs nothing, every `EVERY_S`: how long the target's loop is away."""

    EVERY_S = 0.01

    def __init__(self, path: str) -> None:
        self.request = f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()
        self.waits: list[float] = []

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.ask()

    def ask(self) -> None:
        if not self.transport.is_closing():
            self.asked = time.perf_counter()
            self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.waits.append(time.perf_counter() - self.asked)
        self.parser = httptools.HttpResponseParser(self)
        asyncio.get_running_loop().call_later(self.EVERY_S, self.ask)


async def load(
    port: int,
    message: Message,
    *,
    connections: int,
    seconds: float,
    pid: int,
    probe: str | None = None,
) -> Seen:
    """Run it and account for the CPU of process `pid` and its children.

    Raises TimeoutError where the target does not come to an end.
    """
    seen = Seen()
    loop = asyncio.get_running_loop()
    prober = None
    if probe is not None:
        _, prober = await loop.create_connection(lambda: Probe(probe), "127.0.0.1", port)
    began, before = time.perf_counter(), cpu_s(pid)
    made = [
        (
            await loop.create_connection(
                lambda: Connection(message, began + seconds, seen), "127.0.0.1", port
            )
        )[1]
        for _ in range(connections)
    ]
    async with asyncio.timeout(seconds + 60.0):
        await asyncio.gather(*(one.closed for one in made))
    seen.seconds, seen.cpu_s = time.perf_counter() - began, cpu_s(pid) - before
    if prober is not None:
        seen.probes = prober.waits
        prober.transport.close()
    return seen
