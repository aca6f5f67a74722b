"""The way to `Tables` in another process of this machine: a Unix socket that only this user reaches.

A question and its answer are a few lengths and the bytes themselves, one question at a time on a
connection. Both ends are this very program, so whatever is not so ends the connection. What is asked of
the board goes its own way beside the tables: no lease waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING, TypeVar

from gateway.lease.store import LONGEST_S, Answer, Heard, Said, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from gateway.lease.store import Lost
    from gateway.lease.tables import Tables

T = TypeVar("T")

ASK = struct.Struct("!IIII")
"""Lengths of key, run, what is expected and what is new."""

ANSWER = struct.Struct("!?II")
"""Whether it was taken; lengths of run and document."""

NONE = 0xFFFFFFFF
"""As a length: there is none."""

BOARD = 0xFFFFFFFF
"""As the length of a key: the board is asked. The others are those of who asks and of the document, and
for how many milliseconds; a salt goes before the two."""

LENGTH = struct.Struct("!I")
"""Of the salt."""

POSTED = struct.Struct("!II")
"""How many documents there are, and the length of the salt."""

SAID = struct.Struct("!IIQ")
"""Lengths of who said it and of the document, and its age in milliseconds."""

LIMIT = 1 << 20
"""Bytes of one part at most: a table of 64 gates has some 20 kB."""


class _Way:
    """One connection. Made when it is first used, and anew after a failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._one_at_a_time = asyncio.Lock()
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, question: bytes, read: Callable[[asyncio.StreamReader], Awaitable[T]]) -> T:
        """The answer as `read` reads it. Raises StoreError."""
        async with self._one_at_a_time:
            try:
                if self._ends is None:
                    self._ends = await asyncio.open_unix_connection(self._path)
                reader, writer = self._ends
                writer.write(question)
                return await read(reader)
            except (OSError, EOFError, ValueError) as error:
                self._cut()
                msg = f"of this gate does not answer: {type(error).__name__}"
                raise StoreError(msg) from None
            except BaseException:
                self._cut()  # an answer that nobody waited for must not be taken for the next one
                raise

    def _cut(self) -> None:
        if self._ends is not None:
            self._ends[1].close()
            self._ends = None

    async def close(self) -> None:
        """End it."""
        ends = self._ends
        self._cut()
        if ends is not None:
            with contextlib.suppress(OSError):
                await ends[1].wait_closed()


class LocalStore:
    """The asking side, see `Store`."""

    def __init__(self, path: Path) -> None:
        self._tables, self._board = _Way(path), _Way(path)

    async def swap(self, key: str, run: str, expects: bytes | None, new: bytes) -> Answer:
        """See `Store`."""
        of_key, of_run = key.encode(), run.encode()
        lengths = len(of_key), len(of_run), NONE if expects is None else len(expects), len(new)
        question = b"".join((ASK.pack(*lengths), of_key, of_run, expects or b"", new))
        return await self._tables.ask(question, _answer)

    async def post(
        self, me: str, salt: bytes, document: bytes, lasts_s: float, *, kept: bool = False
    ) -> Heard:
        """See `Store`. What hangs there is lost only together with all who know it: no other salt than
        the first one is ever kept."""
        del kept
        who, lasts_ms = me.encode(), min(int(1000 * lasts_s), int(1000 * LONGEST_S))
        head = ASK.pack(BOARD, len(who), len(document), lasts_ms)
        question = b"".join((head, LENGTH.pack(len(salt)), salt, who, document))
        return await self._board.ask(question, _heard)

    async def restore(self, lost: Mapping[str, Lost]) -> None:
        """See `Store`, and `post`."""

    async def close(self) -> None:
        """See `Store`."""
        await self._tables.close()
        await self._board.close()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    taken, of_run, of_document = ANSWER.unpack(await reader.readexactly(ANSWER.size))
    now = (await reader.readexactly(_sane(of_run))).decode()
    document = None if of_document == NONE else await reader.readexactly(_sane(of_document))
    return Answer(taken, now, document)


async def _heard(reader: asyncio.StreamReader) -> Heard:
    count, of_salt = POSTED.unpack(await reader.readexactly(POSTED.size))
    salt = await reader.readexactly(_sane(of_salt))
    of = {}
    for _ in range(_sane(count)):
        of_who, of_document, age_ms = SAID.unpack(await reader.readexactly(SAID.size))
        who = (await reader.readexactly(_sane(of_who))).decode()
        of[who] = Said(age_ms / 1000, await reader.readexactly(_sane(of_document)))
    return Heard(salt, of)


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
                lengths = ASK.unpack(await reader.readexactly(ASK.size))
                asked = self._posted if lengths[0] == BOARD else self._swapped
                writer.write(await asked(reader, *lengths))
                await writer.drain()
        except (OSError, EOFError, ValueError):
            pass  # it has left, or is none of ours
        finally:
            self._open.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _swapped(
        self, reader: asyncio.StreamReader, of_key: int, of_run: int, of_expected: int, of_new: int
    ) -> bytes:
        key = (await reader.readexactly(_sane(of_key))).decode()
        run = (await reader.readexactly(_sane(of_run))).decode()
        expects = None if of_expected == NONE else await reader.readexactly(_sane(of_expected))
        new = await reader.readexactly(_sane(of_new))
        answer = self._tables.swap(key, run, expects, new)
        now, document = answer.run.encode(), answer.document
        length = NONE if document is None else len(document)
        return ANSWER.pack(answer.taken, len(now), length) + now + (document or b"")

    async def _posted(
        self, reader: asyncio.StreamReader, _: int, of_who: int, of_document: int, lasts_ms: int
    ) -> bytes:
        (of_salt,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        salt = await reader.readexactly(_sane(of_salt))
        who = (await reader.readexactly(_sane(of_who))).decode()
        document = await reader.readexactly(_sane(of_document))
        heard = self._tables.post(who, salt, document, lasts_ms / 1000)
        parts = [POSTED.pack(len(heard.of), len(heard.salt)), heard.salt]
        for name, said in heard.of.items():
            of_name = name.encode()
            age_ms = int(1000 * said.age_s)
            parts += [SAID.pack(len(of_name), len(said.document), age_ms), of_name, said.document]
        return b"".join(parts)


def _sane(length: int) -> int:
    if length > LIMIT:
        msg = "too long"
        raise ValueError(msg)
    return length
