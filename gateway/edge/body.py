"""Reading a request body within its bound, and parsing it, without trusting a byte of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from gateway.edge.dialects import Invalid

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest


class TooLarge(Exception):
    """The body is over the limit. `size` is what was announced or read so far, bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"body of {size} bytes, limit {limit}")
        self.size = size
        self.limit = limit


async def read(request: BaseRequest, limit: int) -> bytes:
    """The whole body. Raises TooLarge before reading what was announced too large."""
    announced = request.content_length
    if announced is not None and announced > limit:
        raise TooLarge(announced, limit)
    parts: list[bytes] = []
    size = 0
    while data := await request.content.readany():
        size += len(data)
        if size > limit:
            raise TooLarge(size, limit)
        parts.append(data)
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
