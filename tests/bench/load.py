"""A closed-loop load on a raw protocol: so many connections, each asks again when answered."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import httptools

TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Seen:
    """What came of a load. Seconds."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    latencies: list[float] = field(default_factory=list)
    chunks: int = 0
    errors: int = 0

    def quantile_ms(self, q: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000 if ordered else 0.0


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def message(*, stream: bool, chunks: int = 0, gap: float = 0.0, size: int = 2000) -> bytes:
    """A chat request of about `size` bytes."""
    content = "hello world " * (size // 12)
    chat = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": content}]}
    if stream:
        chat["stream"] = True
    body = json.dumps(chat, separators=(",", ":")).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"x-chunks: {chunks}\r\nx-gap: {gap}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    def __init__(self, request: bytes, until: float, seen: Seen) -> None:
        self.request, self.until, self.seen = request, until, seen
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.asked = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, _: bytes) -> None:
        self.seen.chunks += 1

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


async def load(port: int, request: bytes, *, connections: int, seconds: float, pid: int) -> Seen:
    """Run it and account for the CPU of process `pid`."""
    seen = Seen()
    loop = asyncio.get_running_loop()
    began, before = time.perf_counter(), cpu_s(pid)
    made = [
        (
            await loop.create_connection(
                lambda: Connection(request, began + seconds, seen), "127.0.0.1", port
            )
        )[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(one.closed for one in made))
    seen.seconds, seen.cpu_s = time.perf_counter() - began, cpu_s(pid) - before
    return seen
