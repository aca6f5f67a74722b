"""Reading a request body within its bound, and parsing it, without trusting a byte of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import HttpVersion11
from aiohttp.web import RequestPayloadError

from gateway.edge.dialects import Invalid

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest


CONTINUE = "100-continue"


class TooLarge(Exception):
    """The body is over the limit. `size` is what was announced or read so far, bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"body of {size} bytes, limit {limit}")
        self.size = size
        self.limit = limit


async def read(request: BaseRequest, limit: int) -> bytes:
    """The whole body, unpacked where it came compressed; `limit` is for what that makes of it.

    Raises TooLarge, before reading what was announced too large, and Invalid for a body that does
    not come out of its coding or framing.
    """
    announced = request.content_length
    if announced is not None and announced > limit:
        raise TooLarge(announced, limit)
    if request.version >= HttpVersion11 and request.headers.get("expect", "").lower() == CONTINUE:
        # Asked before a large body is sent; who gets no answer waits for a second, then sends it.
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # nothing of the answer itself is out
    parts: list[bytes] = []
    size = 0
    try:
        while data := await request.content.readany():
            size += len(data)
            if size > limit:
                raise TooLarge(size, limit)
            parts.append(data)
    except RequestPayloadError:
        request.content.feed_eof()  # or the server would try once more, for the rest
        raise Invalid("the body does not follow its transfer or content encoding") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def parse(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises Invalid for anything else."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Invalid("the body is not valid JSON") from None
    except RecursionError:
        raise Invalid("the body is nested too deeply") from None
    if not isinstance(body, dict):
        raise Invalid("the body must be a JSON object")
    return body
