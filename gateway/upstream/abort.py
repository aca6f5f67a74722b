"""Ask an engine to end one request, by the id we gave it.

SGLang aborts every request whose id **starts with** the given text (0.5.6-0.5.23), and up to
0.5.12 an empty text matches all of them. One short id would end other people's work, so an id that
cannot be whole is refused here, whoever asks.

A 200 says that the engine was told, not that the request is gone: the last event of its stream, the
end of its connection or the loads show that.
"""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING

from gateway.upstream.ask import ANSWER_LIMIT, bearer
from gateway.upstream.errors import UpstreamError

if TYPE_CHECKING:
    from gateway.upstream.ask import Asker

MIN_RID = 16
"""Characters of the shortest id we send: 64 random bits in hexadecimal. Of ids of one length none
is another's prefix."""


class AbortResult(StrEnum):
    """What became of the message, not of the request."""

    TOLD = "told"  # the engine took it
    DENIED = "denied"  # the engine answered something else: a key it wants, a route it lacks
    UNHEARD = "unheard"  # nobody took it: refused, reset or silent


async def abort(client: Asker, rid: str, *, api_key: str | None, timeout_s: float) -> AbortResult:
    """Tell the engine to end the request `rid`; whatever happens takes at most `timeout_s`.

    On a server with --admin-api-key only that key may abort. A batch whose ids are `rid` and a
    suffix each ends whole. Raises ValueError for an id too short to be one of ours.
    """
    if len(rid) < MIN_RID:
        message = (
            f"refusing to abort by an id of {len(rid)} characters: the engine matches ids by "
            f"prefix, so it needs at least {MIN_RID}"
        )
        raise ValueError(message)
    headers = (("content-type", "application/json"), *bearer(api_key))
    body = json.dumps({"rid": rid}).encode()
    try:
        async with asyncio.timeout(timeout_s):
            reply = await client.request("POST", "/abort_request", headers, body)
            try:
                await reply.read_all(ANSWER_LIMIT)
            finally:
                reply.close()
    except (UpstreamError, TimeoutError):
        return AbortResult.UNHEARD
    return AbortResult.TOLD if reply.status == HTTPStatus.OK else AbortResult.DENIED
