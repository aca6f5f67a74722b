"""The id of an answer: the client's own where it is fit to be echoed, else one that is drawn here.

On every answer of both planes, whoever makes it: it is put on when the head is written, where all of them
pass. What has a record (`trip`) has said its own by then.
"""

from __future__ import annotations

import re
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.hdrs import SERVER

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME: Final = "x-request-id"

_CLEAN: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""A client's id that is safe to echo and to log."""

OURS: Final = "kvgate"
"""In the place of aiohttp's words, which tell strangers whose faults to try."""

BYTES: Final = 14
"""112 random bits: nobody meets one of another request, and none is the beginning of another."""


def drawn() -> str:
    """An id of our own."""
    return secrets.token_hex(BYTES)


def clean(headers: Mapping[str, str]) -> str | None:
    """The client's own, where it is fit to be echoed."""
    sent = headers.get(NAME, "")
    return sent if _CLEAN.fullmatch(sent) else None


def put_on(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """See that an answer has its id, and that it says who answers and not in which versions."""
    headers = response.headers
    if NAME not in headers:
        headers[NAME] = clean(request.headers) or drawn()
    headers[SERVER] = OURS


class _Named(web.Request):
    """A request to an application, whose answer has an id also where no route and no head is found."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        put_on(self, response)
        await super()._prepare_hook(response)


def on_all_of(runner: web.AppRunner) -> None:
    """Let every answer of an application that was set up, and does not listen yet, have its id."""
    if runner.server is None:
        raise RuntimeError("not set up")
    make = runner.app._make_request  # noqa: SLF001 - what it was set up with itself
    runner.server.request_factory = partial(make, _cls=_Named)
