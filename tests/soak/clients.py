"""Clients as they come: polite ones, slow ones, and those that leave at any moment.

Each request is written byte by byte on a raw connection, so that it can end in any phase. A client
gives up on an answer after `PATIENCE_S`: that would be a hang, and is counted as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PATIENCE_S = 120.0
"""Longer than queue, first byte and idle limits of the soak's policy together."""


class Leaves(StrEnum):
    """When a client goes away."""

    NEVER = "never"
    IN_HEAD = "in its own head"
    IN_BODY = "in its own body"
    AT_ONCE = "as soon as it is sent"
    SOON = "some time later"
    IN_ANSWER = "in the answer"


@dataclass
class Tally:
    """What the clients saw."""

    sent: int = 0  # requests whose last byte was written
    statuses: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    broken: int = 0  # complete heads, answers cut short
    in_band: int = 0  # streams that ended with an error event
    duplicates: int = 0  # the engine had the id already: our resend after a connection broke
    unanswered: int = 0  # the connection ended without a byte
    hangs: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # what must never be
    answered: set[str] = field(default_factory=set)  # ids that were given a status
    ids: set[str] = field(default_factory=set)  # ids of requests sent whole


class Client:
    """One client in a closed loop, with a connection that it keeps where it can."""

    def __init__(self, number: int, port: int, seed: int, tally: Tally) -> None:
        self.name = f"c{number % 4}"
        self.number = number
        self.port = port
        self.dice = random.Random(f"{seed}/{number}")
        self.tally = tally
        self._count = 0
        self._kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until told to stop."""
        while not stop.is_set():
            ident = f"{self.number}-{self._count}"
            self._count += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._one(ident)
            except TimeoutError:
                self.tally.hangs.append(ident)
                self._drop()
            except (ConnectionError, asyncio.IncompleteReadError):
                self.tally.unanswered += 1
                self._drop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.dice.expovariate(1 / 0.4)):
                    await stop.wait()
        self._drop()

    # ---- one request ----

    async def _one(self, ident: str) -> None:
        dice = self.dice
        leaves = dice.choices(list(Leaves), [70, 2, 3, 6, 10, 9])[0]
        path, body = self._ask()
        data = self._bytes(ident, path, body)
        reader, writer = await self._connection()
        if leaves in (Leaves.IN_HEAD, Leaves.IN_BODY):
            head = data.index(b"\r\n\r\n")
            cut = (
                dice.randrange(1, head)
                if leaves is Leaves.IN_HEAD
                else dice.randrange(head, len(data))
            )
            writer.write(data[:cut])
            await asyncio.sleep(dice.random() * 0.05)
            self._leave(leaves)
            return
        writer.write(data)
        await writer.drain()
        self.tally.sent += 1
        self.tally.ids.add(ident)
        if leaves in (Leaves.AT_ONCE, Leaves.SOON):
            if leaves is Leaves.SOON:
                await asyncio.sleep(dice.expovariate(1 / 0.7))
            self._leave(leaves)
            return
        await self._answer(ident, reader, leaves)

    async def _answer(self, ident: str, reader: asyncio.StreamReader, leaves: Leaves) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        status = int(first.split()[1])
        fields = dict(line.lower().split(": ", 1) for line in lines)
        self.tally.statuses[str(status)] += 1
        self.tally.answered.add(ident)
        if status == 500 or (status >= 500 and "x-kvgate-error-source" not in fields):
            self.tally.wrong.append(f"{ident}: {status} of unknown origin")
        if leaves is Leaves.IN_ANSWER:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.dice.random() * 0.6):
                    await reader.read(self.dice.randrange(1, 4000))
            self._leave(leaves)
            return
        slow = self.dice.random() < 0.05
        try:
            body = await self._body(reader, fields, slow=slow)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.tally.broken += 1
            self._drop()
            return
        self.tally.duplicates += b"Duplicate request ID" in body
        if body.startswith(b"data: "):
            self._judge_stream(ident, body)
        elif status == 200 or body.startswith(b"{"):
            json.loads(body)
        if fields.get("connection") == "close" or self.dice.random() < 0.3:
            self._drop()

    def _judge_stream(self, ident: str, body: bytes) -> None:
        done = body.endswith(b"data: [DONE]\n\n")
        failed = b'"error"' in body.rsplit(b"data: ", 2)[-1 if not done else -2]
        self.tally.in_band += failed
        if done == failed:
            self.tally.wrong.append(f"{ident}: a stream that ended neither well nor in words")

    async def _body(self, reader: asyncio.StreamReader, fields: Any, *, slow: bool) -> bytes:
        async def pause() -> None:
            if slow:
                await asyncio.sleep(self.dice.random() * 0.2)

        if "content-length" in fields:
            return await reader.readexactly(int(fields["content-length"]))
        parts = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
            await pause()
        await reader.readexactly(2)
        return b"".join(parts)

    # ---- what it asks ----

    def _ask(self) -> tuple[str, Any]:
        dice = self.dice
        roll = dice.random()
        if roll < 0.03:
            return "/v1/chat/completions", b'{"messages": [' + b"[" * dice.randrange(300)
        if roll < 0.05:
            return dice.choice(["/flush_cache", "/v1/embeddings", "/abort_request"]), {"rid": ""}
        text = "word " * min(3000, int(dice.lognormvariate(5, 1.2)) + 1)
        cap = dice.choice([None, 5, 40, 200, 800, 100_000])
        stream = dice.random() < 0.65
        n = dice.choice([1, 1, 1, 1, 2, 3])
        if roll < 0.6:
            messages = [{"role": "user", "content": text}]
            body: Any = {"model": "tiny", "messages": messages, "stream": stream, "n": n}
            return "/v1/chat/completions", body | ({} if cap is None else {"max_tokens": cap})
        if roll < 0.85:
            prompt = dice.choice([text, [text, text], [7] * dice.randrange(1, 600)])
            body = {"model": "tiny", "prompt": prompt, "stream": stream}
            return "/v1/completions", body | ({} if cap is None else {"max_tokens": cap})
        params = {} if cap is None else {"max_new_tokens": cap}
        return "/generate", {"text": text, "stream": stream, "sampling_params": params}

    def _bytes(self, ident: str, path: str, body: Any) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: gate\r\nx-who: {self.name}\r\nx-request-id: {ident}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    # ---- the connection ----

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._kept is not None:
            return self._kept
        sock = socket.socket()
        sock.setblocking(False)
        if self.dice.random() < 0.2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        self._kept = await asyncio.open_connection(sock=sock, limit=1 << 20)
        return self._kept

    def _leave(self, how: Leaves) -> None:
        self.tally.left[how.value] += 1
        self._drop(reset=self.dice.random() < 0.5)

    def _drop(self, *, reset: bool = True) -> None:
        if self._kept is not None:
            writer, self._kept = self._kept[1], None
            if reset:
                writer.transport.abort()
            else:
                writer.close()
