"""Reading a request body within its bound, and parsing it, without trusting a byte of it."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import HttpVersion11
from aiohttp.web import RequestPayloadError

from gateway.edge.dialects import Invalid
from gateway.tasks import in_time

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest


CONTINUE = "100-continue"

MOST_NODES = 50_000
"""Fields, objects and lists of a body, all together. Text costs little, however long, and so do numbers;
these are made and looked at one by one on the event loop, a microsecond or two each (0.9 s for 600,000
were measured): this is a tenth of a second. A thousand turns with tool calls and their tools have some
20,000."""

TOO_MANY = (
    f"the body has more than {MOST_NODES:,} fields, objects and lists; use fewer, longer parts"
)

MARK = "\ufeff".encode()
"""The byte order mark: the engine's reader skips it, and JSON's has none."""

TOO_DEEP = "the body is nested too deeply"

_NODE = re.compile(
    rb'(?>[^":{\[]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:[:{\[]|\Z)', re.DOTALL
)
"""The next mark of a node, whole texts skipped, or the end. A text that does not end takes all that
follows, and nothing is tried twice: one pass, whatever the bytes."""


class Unread(Exception):
    """The body was not read to its end."""


class TooLarge(Unread):
    """The body is over the limit. `size` is what was announced or read so far, bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"body of {size} bytes, limit {limit}")
        self.size = size
        self.limit = limit


class TooSlow(Unread):
    """The body did not come within its time."""

    def __init__(self, size: int, within_s: float) -> None:
        super().__init__(f"{size} bytes of the body came in {within_s:g} s, and not the rest")


class Garbled(Unread):
    """The body does not come out of its coding or framing."""

    def __init__(
        self, words: str = "the body does not follow its transfer or content encoding"
    ) -> None:
        super().__init__(words)


class Coded(Unread):
    """The body is in a coding that is not unpacked here."""


UNPACKED = {"gzip", "deflate", "br", "zstd"}
"""What aiohttp takes for a coding; of these it unpacks br and zstd only where their libraries are
installed, and says so itself (see `face`)."""

CHUNKED = "chunked"
FRAMED = "the transfer-encoding of a request may be chunked, and nothing beside it"

PLAIN = {"", "identity"}
"""How a coding is named that changes nothing."""


def _understood(request: BaseRequest) -> bool:
    """Whether what will be read is what the client wrote, unpacked: aiohttp leaves as they are a
    coding that it does not know and several in a row, and the engine would be sent noise."""
    codings = [coding.lower() for coding in request.headers.getall("content-encoding", ())]
    return PLAIN.issuperset(codings) or (len(codings) == 1 and codings[0] in UNPACKED)


def _framed(request: BaseRequest) -> bool:
    """Whether nothing was done to the body but to cut it in chunks: aiohttp takes `gzip, chunked` for
    chunked, and would give the compressed bytes as they are."""
    codings = request.headers.getall("transfer-encoding", ())
    return all(coding.strip().lower() == CHUNKED for coding in codings)


def _check_codings(request: BaseRequest) -> None:
    """Raises Coded or Garbled."""
    if not _understood(request):
        _last(request)
        raise Coded
    if not _framed(request):
        _last(request)
        raise Garbled(FRAMED)


async def read(request: BaseRequest, limit: int, within_s: float) -> bytes:
    """The whole body, unpacked where it came compressed; `limit` is for what that makes of it.

    Raises TooLarge, before reading what was announced too large, TooSlow after `within_s`, and Coded or
    Garbled, some of it before reading, after which the connection carries no other request: where one
    begins is not known.
    """
    _check_codings(request)
    announced = request.content_length
    if announced is not None and announced > limit:
        raise TooLarge(announced, limit)
    if request.version >= HttpVersion11 and request.headers.get("expect", "").lower() == CONTINUE:
        # Asked before a large body is sent; who gets no answer waits for a second, then sends it.
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # nothing of the answer itself is out
    content = request.content
    if content.is_eof() and content.exception() is None:  # nearly always: it came with its head
        data = content.read_nowait()
        if len(data) > limit:
            raise TooLarge(len(data), limit)
        return data
    parts: list[bytes] = []
    size = 0
    try:
        async with in_time(within_s):
            while data := await request.content.readany():
                size += len(data)
                if size > limit:
                    raise TooLarge(size, limit)
                parts.append(data)
    except TimeoutError:
        raise TooSlow(size, within_s) from None
    except RequestPayloadError:
        request.content.feed_eof()  # or the server would try once more, for the rest
        _last(request)
        raise Garbled from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _last(request: BaseRequest) -> None:
    """No other on this connection, after the answer: its parser may wait for a rest that never comes."""
    if request.protocol is not None:
        request.protocol.close()


def parse(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises Invalid for anything else."""
    if _has_too_many(data):
        raise Invalid(TOO_MANY)
    try:
        body = orjson.loads(data.removeprefix(MARK))
    except orjson.JSONDecodeError as error:
        raise Invalid(_not_json(data, error)) from None
    except RecursionError:
        raise Invalid(TOO_DEEP) from None
    if not isinstance(body, dict):
        raise Invalid("the body must be a JSON object")
    return body


def _not_json(data: bytes, error: orjson.JSONDecodeError) -> str:
    """What is wrong and where, and none of what is there."""
    if error.msg.startswith("depth limit"):
        return TOO_DEEP
    if "surrogate" not in error.msg:
        return f"the body is not valid JSON: {error}"
    try:  # the reader says no more than that, and that it is at its beginning
        data.decode()
    except UnicodeDecodeError as found:
        return f"the body is no UTF-8 text at its byte {found.start}; encode it as UTF-8"
    return (
        f"a text in the body has half a character, a surrogate without its other, at char {error.pos}: "
        "it was cut there; cut between characters"
    )


def _has_too_many(data: bytes) -> bool:
    """Whether there are more than MOST_NODES. Most bodies have not as many marks, texts included."""
    if data.count(b":") + data.count(b"{") + data.count(b"[") <= MOST_NODES:
        return False
    return next(islice(_NODE.finditer(data), MOST_NODES, None), None) is not None
