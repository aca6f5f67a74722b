"""The way to `Tables` in another process of this machine: a Unix socket that only this user reaches.

A question and its answer are a few lengths and the bytes themselves, one question at a time on a
connection. Both ends are this very program, so whatever is not so ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING

from gateway.lease.store import Answer, StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.lease.tables import Tables

ASK = struct.Struct("!IIII")
"""Lengths of key, run, what is expected and what is new."""

ANSWER = struct.Struct("!?II")
"""Whether it was taken; lengths of run and document."""

NONE = 0xFFFFFFFF
"""As a length: there is none."""

LIMIT = 1 << 20
"""Bytes of one part at most: a table of 64 gates has some 20 kB."""


class LocalStore:
    """The asking side, see `Store`. Connects when it is first asked, and anew after a failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._one_at_a_time = asyncio.Lock()
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def swap(self, key: str, run: str, expects: bytes | None, new: bytes) -> Answer:
        """See `Store`."""
        async with self._one_at_a_time:
            try:
                return await self._ask(key.encode(), run.encode(), expects, new)
            except (OSError, EOFError, ValueError) as error:
                self._cut()
                msg = f"of this gate does not answer: {type(error).__name__}"
                raise StoreError(msg) from None
            except BaseException:
                self._cut()  # an answer that nobody waited for must not be taken for the next one
                raise

    async def _ask(self, key: bytes, run: bytes, expects: bytes | None, new: bytes) -> Answer:
        if self._ends is None:
            self._ends = await asyncio.open_unix_connection(self._path)
        reader, writer = self._ends
        lengths = len(key), len(run), NONE if expects is None else len(expects), len(new)
        writer.write(b"".join((ASK.pack(*lengths), key, run, expects or b"", new)))
        taken, of_run, of_document = ANSWER.unpack(await reader.readexactly(ANSWER.size))
        now = (await reader.readexactly(_sane(of_run))).decode()
        document = None if of_document == NONE else await reader.readexactly(_sane(of_document))
        return Answer(taken, now, document)

    def _cut(self) -> None:
        if self._ends is not None:
            self._ends[1].close()
            self._ends = None

    async def close(self) -> None:
        """See `Store`."""
        ends = self._ends
        self._cut()
        if ends is not None:
            with contextlib.suppress(OSError):
                await ends[1].wait_closed()


class Counter:
    """The answering side: `start`, then `stop`, each once."""

    def __init__(self, tables: Tables, path: Path) -> None:
        self._tables = tables
        self._path = path
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def stop(self) -> None:
        """End it, with all connections."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                writer.write(self._answer(*await _question(reader)))
                await writer.drain()
        except (OSError, EOFError, ValueError):
            pass  # it has left, or is none of ours
        finally:
            self._open.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, key: str, run: str, expects: bytes | None, new: bytes) -> bytes:
        answer = self._tables.swap(key, run, expects, new)
        now, document = answer.run.encode(), answer.document
        length = NONE if document is None else len(document)
        return ANSWER.pack(answer.taken, len(now), length) + now + (document or b"")


async def _question(reader: asyncio.StreamReader) -> tuple[str, str, bytes | None, bytes]:
    of_key, of_run, of_expected, of_new = ASK.unpack(await reader.readexactly(ASK.size))
    key = (await reader.readexactly(_sane(of_key))).decode()
    run = (await reader.readexactly(_sane(of_run))).decode()
    expects = None if of_expected == NONE else await reader.readexactly(_sane(of_expected))
    return key, run, expects, await reader.readexactly(_sane(of_new))


def _sane(length: int) -> int:
    if length > LIMIT:
        msg = "too long"
        raise ValueError(msg)
    return length
