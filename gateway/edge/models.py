"""The routes that generate nothing, and the words for a gate without a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from aiohttp import web

from gateway.core.model import Code, Refusal
from gateway.core.turns import GOING_DOWN
from gateway.edge import body as bodies
from gateway.edge import replies, routes
from gateway.edge.dialects import Invalid, guard
from gateway.edge.face import goes_down
from gateway.edge.voices import OPENAI
from gateway.gate import Shed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.edge.backends import Backend, Fleet
    from gateway.edge.callers import Callers
    from gateway.edge.dialects import Dialect
    from gateway.edge.names import Names
    from gateway.edge.voices import Voice

GONE = 499
"""The status of an answer that nobody gets, as nginx calls it: the connection is closed already."""

UNKNOWN: Final = replies.Answer(
    404,
    {
        "message": "There is no such model here for this client. GET /v1/models lists those there are.",
        "type": "not_found_error",
        "param": "model",
        "code": Code.NOT_FOUND.value,
    },
    {replies.SOURCE: "gateway", "x-should-retry": "false"},
)
"""The same for a model that is not there and one that is not the client's: it is not told which."""

RESTART_S = 10.0
"""Told while no server is ready, and then as long as it has not been. A restart takes from 15 s to minutes, and
agents try six times (OpenCode 1.18) to thirty: each ten seconds apart, six are over before a large model is loaded."""


async def answer(
    request: web.BaseRequest, callers: Callers, fleet: Fleet, names: Names
) -> web.StreamResponse:
    """The models of every server that is ready, merged, as far as the client may use them; or the one
    of them that the path names."""
    try:
        client = callers.known(request)
    except Shed as shed:
        return plain(shed.refusal)
    ready = [backend for backend in fleet if backend.ready]
    await names.read(ready)
    if not ready:
        return plain(nobody(fleet))
    known = callers.visible(client, _served(ready), int)
    path = request.rel_url.raw_path
    if not path.startswith(routes.MODEL):
        listed = [_told(*one) for one in known.items()]
        return web.json_response({"object": "list", "data": listed})
    asked = unquote(
        path.removeprefix(routes.MODEL)
    )  # an SDK writes Qwen%2FQwen3-8B, a person does not
    for name in (asked, guard.untagged(asked)):
        if name in known:
            return web.json_response(_told(name, known[name]))
    return plain(UNKNOWN)


def _told(model: str, context: int) -> dict[str, Any]:
    return {
        "id": model,
        "object": "model",
        "created": 0,
        "owned_by": "sglang",
        "root": model,
        "parent": None,
        "max_model_len": context,
    }


def _served(ready: list[Backend]) -> dict[str, int]:
    """Each model with the largest context one of its servers takes."""
    models: dict[str, int] = {}
    for backend in ready:
        if backend.facts is not None:
            for model in backend.facts.names:
                models[model] = max(models.get(model, 0), backend.facts.context)
    return models


_HOW = {"connecting": "is connecting: it has not been reached so far"}
"""A state that sounds as if it were about to be over."""


def nobody(backends: Iterable[Backend]) -> Refusal:
    """The refusal while none of these takes work: how each of them is, and when to come back."""
    words, since = [], []
    now = asyncio.get_running_loop().time()
    for backend in backends:
        view = backend.watch.snapshot() if backend.watch is not None else None
        since.append(0.0 if view is None else now - view.since)
        state = "starting" if view is None else view.state.value
        if state == "ready":
            state = "held back after several deaths" if backend.held else "getting ready"
        words.append(f"{backend.name} {_HOW.get(state, f'is {state}')}")
    again_s = max(RESTART_S, min(since, default=0.0))
    return Refusal(
        Code.NO_BACKEND, "no server is ready: " + ", ".join(words), retry_after_s=again_s
    )


def serving(fleet: Fleet, model: str | None) -> list[Backend]:
    """Servers that may run a request for `model`: those that serve it, else all.

    SGLang itself takes any name (0.5.6-0.5.23), and clients rely on it. One that has not been seen yet may
    serve anything. Once it was looked for and is away, a name is kept for it where policy has it, or
    where it is that of an adapter: others' names would all be refused for one server of two that does not start.
    Raises Invalid for an adapter that none of them lists: what is behind the colon of a name selects one in
    the engine.
    """
    staying = [backend for backend in fleet if not backend.leaving]
    found = [backend for backend in staying if backend.serves(model)]
    if model is not None and ":" in model:
        if staying and not found:
            msg = "no server here lists this model with such an adapter; GET /v1/models lists those there are"
            raise Invalid(msg, "model")
        return found
    if any(one.facts is not None or one.expected for one in found) or fleet.names(model):
        return found or staying
    return staying


def able(dialect: Dialect, backends: list[Backend], path: str) -> list[Backend]:
    """Those of `backends` that have this route. Raises Shed where none has it; one that is not
    ready is given the benefit of the doubt."""
    lacking = {backend.name: lack for backend in backends if (lack := _lack(dialect, backend))}
    if lacking and len(lacking) == len(backends):
        words = "; ".join(f"{name} {lack}" for name, lack in lacking.items())
        raise Shed(Refusal(Code.NOT_FOUND, f"no server here can answer {path}: {words}"), None)
    return [backend for backend in backends if backend.name not in lacking]


def _lack(dialect: Dialect, backend: Backend) -> str:
    engine, needed = backend.engine, ".".join(map(str, dialect.since))
    if not backend.ready:
        return ""
    if engine.version < dialect.since:
        runs = ".".join(map(str, engine.version))
        return f"runs SGLang {runs}, and the route came with {needed}"
    if engine.ranks > 1 and not dialect.steered:
        return f"has {engine.ranks} data-parallel ranks, and the route can not be steered to one"
    return ""


def no(error: Invalid | bodies.Unread | Shed) -> Refusal | replies.Answer:
    """What is told where a route that leaves no record raised."""
    match error:
        case Shed():
            return error.refusal
        case Invalid():
            return replies.invalid(str(error), error.param)
        case bodies.TooLarge():
            return replies.too_large(error.size, error.limit)
        case bodies.Garbled():
            return replies.garbled(str(error))
        case bodies.Coded():
            return replies.coded()
        case _:
            return replies.too_slow(str(error))


def alive(request: web.BaseRequest) -> web.Response:
    """The root of the data port: agents ask it before they begin, and balancers whether to send any more.
    Those mostly have no way to /readyz."""
    if goes_down(request):
        return plain(Refusal(Code.DRAINING, GOING_DOWN))
    return web.Response(text="kvgate\n")


def plain(refusal: Refusal | replies.Answer, voice: Voice = OPENAI) -> web.Response:
    """The refusal of a request that leaves no record."""
    refused = replies.refused(refusal) if isinstance(refusal, Refusal) else refusal
    status, body = voice.whole(refused)
    answer = web.Response(
        status=status,
        body=body,
        headers=refused.headers,
        content_type=replies.JSON,
    )
    if (
        "connection" in refused.headers
    ):  # the last on its connection: said, it has to be done as well
        answer.force_close()
    return answer
