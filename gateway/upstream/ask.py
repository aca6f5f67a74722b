"""One question to an engine: a GET, its JSON, or the way in which it failed.

The watch and the discovery decide by *how* a question failed, so the many failures of a connection
are sorted here into seven.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import orjson

from gateway.upstream.errors import Failure, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterable

Headers = tuple[tuple[str, str], ...]

ANSWER_LIMIT = 8 << 20
"""Bytes. A /server_info is 37 kB a rank on 0.5.23; a model list with many adapters is longer."""


class Answer(Protocol):
    """The part of the HTTP client's reply that is needed here."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    async def read_all(self, limit: int) -> bytes:
        """The body; raises UpstreamError."""
        ...

    def close(self) -> None:
        """Drop the connection unless the body has ended."""
        ...


class Asker(Protocol):
    """The part of the HTTP client that is needed here."""

    async def request(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b""
    ) -> Answer:
        """Send a request and wait for the head of its answer; raises UpstreamError."""
        ...


class Wrong(StrEnum):
    """How a question failed."""

    OURS = "ours"  # it could not be asked: see `errors.OURS`
    SHUT = "shut"  # nobody listens, or the connection broke: nobody is there, or not any more
    NO_WAY = "no_way"  # no connection, and nothing known of who is there
    TLS = "tls"  # somebody is there, and TLS with them fails
    SILENT = "silent"  # a connection, and nothing on it in time
    STATUS = "status"  # an answer that is not a 200
    GARBLED = "garbled"  # an answer that is not HTTP or not JSON


class AskError(Exception):
    """A question failed. The message is for people and holds nothing of a request or reply."""

    def __init__(self, wrong: Wrong, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.wrong = wrong
        self.status = status  # where there was one that is not 200


_WRONG = {
    Failure.OURS: Wrong.OURS,
    Failure.CONNECT: Wrong.SHUT,
    Failure.NO_WAY: Wrong.NO_WAY,
    Failure.TLS: Wrong.TLS,
    Failure.RESET: Wrong.SHUT,
    Failure.TRUNCATED: Wrong.SHUT,
    Failure.FIRST_BYTE_TIMEOUT: Wrong.SILENT,
    Failure.IDLE_TIMEOUT: Wrong.SILENT,
    Failure.PROTOCOL: Wrong.GARBLED,
    Failure.TOO_LARGE: Wrong.GARBLED,
}


async def ask(client: Asker, target: str, headers: Headers, *, timeout_s: float) -> object:
    """The JSON at `target`, all within `timeout_s`. Raises AskError, and nothing else."""
    body = await read(client, target, headers, timeout_s=timeout_s, limit=ANSWER_LIMIT)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise AskError(Wrong.GARBLED, "The engine's answer is not JSON.") from error


async def read(
    client: Asker, target: str, headers: Headers, *, timeout_s: float, limit: int
) -> bytes:
    """The bytes at `target`, at most `limit`, all within `timeout_s`. Raises AskError only."""
    try:
        async with asyncio.timeout(timeout_s):
            answer = await client.request("GET", target, headers)
            try:
                body = await answer.read_all(limit)
            finally:
                answer.close()
    except TimeoutError as error:
        raise AskError(Wrong.SILENT, f"No answer within {timeout_s:g} s.") from error
    except UpstreamError as error:
        raise AskError(_WRONG[error.kind], str(error)) from error
    if answer.status != HTTPStatus.OK:
        message = f"The engine answered with status {answer.status}."
        raise AskError(Wrong.STATUS, message, answer.status)
    return body


def bearer(api_key: str | None) -> Headers:
    """The header that SGLang's --api-key and --admin-api-key check."""
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)
