"""The routes that generate, count and abort, as handlers over a TwinServer."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from gateway.tokens.anthropic import chat_from_messages
from gateway.twin import anthropic, bodies, facts, shapes, tokenizer
from gateway.twin.asks import Ask, Dialect, parse
from gateway.twin.flow import Flow
from gateway.twin.process import Life
from gateway.twin.refusals import Broken, Fatal, Invalid, pydantic_message
from gateway.twin.wire import HEADERS, empty, event_stream, json_answer, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.twin.server import TwinServer

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY = 1 << 30  # bytes; SGLang sets no limit of its own
JSON = "application/json"

# Messages that one body cannot be anything else than, as pydantic and FastAPI put them.
_NO_OBJECT = "Input should be a valid dictionary or object to extract fields from"
_MEDIA = "Unsupported Media Type: Only 'application/json' is allowed"


def application(server: TwinServer) -> web.Application:
    """The aiohttp application of `server`."""

    @web.middleware
    async def alive(request: web.Request, handler: Handler) -> web.StreamResponse:
        if server.process.life is not Life.READY:
            if server.process.life is Life.GONE and request.transport is not None:
                request.transport.abort()  # it slipped in while the socket was closing
            await asyncio.Event().wait()  # accepted, never answered, until the socket is cut
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _elsewhere(app, request) or json_answer({"detail": "Not Found"}, 404)
        except web.HTTPMethodNotAllowed:
            return json_answer({"detail": "Method Not Allowed"}, 405)
        except Broken as broken:
            if broken.message is None:
                return text(str(broken), 500)
            return json_answer(bodies.openai_error(broken.message, 500, "InternalServerError"), 500)
        except Fatal as death:
            server.kill(str(death))
            await asyncio.Event().wait()  # until the socket is cut
            raise

    app = web.Application(client_max_size=MAX_BODY, middlewares=[alive])
    face = Face(server)
    post = app.router.add_post
    post("/v1/chat/completions", face.chat)
    post("/v1/completions", face.completion)
    post("/generate", face.generate)
    post("/tokenize", face.tokenize)
    post("/v1/tokenize", face.tokenize)
    post("/abort_request", face.abort)
    if server.traits.has_messages:
        post("/v1/messages", face.messages)
        post("/v1/messages/count_tokens", face.count)
    facts.add_routes(app, server)
    return app


def _elsewhere(app: web.Application, request: web.Request) -> web.Response | None:
    """Starlette's redirect for a slash too many, or None."""
    path = request.path.rstrip("/")
    if path == request.path or not path:
        return None
    if not any(each.canonical == path for each in app.router.resources()):
        return None
    where = str(request.url.with_path(path).with_query(request.query))
    return web.Response(status=307, headers={**HEADERS, "location": where})


class Face:
    """The handlers."""

    def __init__(self, server: TwinServer) -> None:
        self._server = server
        self._traits = server.traits

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._answer(request, Dialect.CHAT)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._answer(request, Dialect.COMPLETION)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate."""
        return await self._answer(request, Dialect.GENERATE)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages."""
        return await self._answer(request, Dialect.MESSAGES)

    async def count(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages/count_tokens."""
        try:
            body = shapes.fit(shapes.CountTokens, await _read(request), request.path)
        except Invalid as refusal:
            return await self._refuse(request, Dialect.MESSAGES, {}, refusal)
        chat = chat_from_messages(body)
        rendered = tokenizer.render(chat["messages"], chat.get("tools"))
        return json_answer({"input_tokens": tokenizer.count(rendered)})

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """POST /tokenize: what admission will count."""
        shape = shapes.Tokenize if self._traits.tokenizes_messages else shapes.OldTokenize
        try:
            body = shapes.fit(shape, await _read(request), request.path)
            messages, prompt = body.get("messages"), body.get("prompt")
            if prompt is None and not messages:
                raise Invalid("Messages cannot be empty.")  # noqa: TRY301
        except Invalid as refusal:
            return await self._refuse(request, Dialect.COMPLETION, {}, refusal)
        if prompt is None:
            tools = None if body.get("tool_choice") == "none" else body.get("tools")
            tokens: list[Any] = tokenizer.ids(tokenizer.render(messages or [], tools))
            count: Any = len(tokens)
        elif isinstance(prompt, list):
            tokens = [tokenizer.ids(item.encode()) for item in prompt]
            count = [len(item) for item in tokens]
        else:
            tokens = tokenizer.ids(prompt.encode())
            count = len(tokens)
        limit = self._server.profile.context
        return json_answer({"tokens": tokens, "count": count, "max_model_len": limit})

    async def abort(self, request: web.Request) -> web.StreamResponse:
        """POST /abort_request: by rid prefix, or everything."""
        try:
            body = shapes.fit(shapes.Abort, await _read(request), request.path)
        except Invalid as refusal:
            return await self._refuse(request, Dialect.COMPLETION, {}, refusal)
        rid = body.get("rid") or ""
        if rid or body.get("abort_all") or self._traits.empty_rid_aborts_all:
            self._server.abort("" if body.get("abort_all") else rid)
        return empty()

    async def _answer(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        server = self._server
        body: dict[str, Any] = {}
        try:
            body = await _read(request)
            ask = self._parse(dialect, body)
        except Invalid as refusal:
            if refusal.length and self._traits.leaks_refusals:
                server.process.leaked += 1
            return await self._refuse(request, dialect, body, refusal)
        if not ask.sequences:
            return json_answer([])  # an empty list of texts: an empty list of answers
        started = server.now()
        flow = Flow(request, ask, server.submit(ask), self._traits)
        try:
            answer = await (flow.stream() if ask.stream else flow.collect())
        except (asyncio.CancelledError, ConnectionResetError) as left:
            server.leave(ask, started, flowing=flow.flowing)
            if isinstance(left, asyncio.CancelledError):
                raise
            return empty()  # its client has hung up as well: nobody reads it
        server.forget(ask)
        return answer

    def _parse(self, dialect: Dialect, body: dict[str, Any]) -> Ask:
        profile = self._server.profile
        ask = parse(
            dialect,
            body,
            self._traits,
            model=profile.model,
            context=profile.context,
            images=profile.images,
        )
        server = self._server
        # An id is taken until its job has ended, also when its client has left.
        if any(one.rid in server.inboxes or server.engine.knows(one.rid) for one in ask.sequences):
            message = f"Duplicate request ID detected: {ask.rid}"
            raise Invalid(message)
        return ask

    async def _refuse(
        self, request: web.Request, dialect: Dialect, body: dict[str, Any], refusal: Invalid
    ) -> web.StreamResponse:
        """A 400; inside a 200 stream for /generate, for what is too long on /v1/messages, and in
        0.5.6 for every stream."""
        error: dict[str, Any]
        streams = bool(body.get("stream")) and not refusal.pydantic
        if dialect is Dialect.MESSAGES:
            kind = "invalid_request_error" if refusal.pydantic else "BadRequestError"
            whole = anthropic.error(refusal.kind or kind, refusal.message)
            if not (streams and refusal.length):
                return json_answer(whole, 400)
            events = (
                anthropic.start(uuid.uuid4().hex, str(body["model"]), 0),
                anthropic.broken(400, refusal.message),
                anthropic.stop(),
            )
            return await _stream_out(request, b"".join(events))
        if dialect is Dialect.GENERATE and not refusal.pydantic:
            error = {"message": refusal.message}
            if streams and self._traits.snapshot_loads:  # 0.5.17 added the three fields
                error |= {"type": "invalid_request_error", "code": 400, "retryable": False}
            whole = {"error": error}
        else:
            kind = "Bad Request" if refusal.pydantic else "BadRequestError"
            error = bodies.openai_error(refusal.message, 400, refusal.kind or kind)
            whole = error
            streams = streams and not self._traits.headers_with_first_token
        if not streams:
            return json_answer(whole, 400)
        return await _stream_out(request, bodies.event({"error": error}) + bodies.DONE)


async def _stream_out(request: web.Request, events: bytes) -> web.StreamResponse:
    response = event_stream()
    await response.prepare(request)
    await response.write(events)
    return response


async def _read(request: web.Request) -> dict[str, Any]:
    """The JSON body. Raises Invalid as the engine words it, Broken where its handler fails."""
    raw, route = await request.read(), request.path
    if not raw:
        raise shapes.unfit([_error("missing", (), "Field required", None)], route)
    if request.content_type != JSON or "content-type" not in request.headers:
        raise _not_json(route, raw)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as problem:
        if route.startswith("/v1/messages"):
            message = f"{problem.pos}: JSON decode error"
            raise Invalid(message, pydantic=True) from None
        detail = _error("json_invalid", ("body", problem.pos), "JSON decode error", {})
        raise Invalid(
            pydantic_message([detail | {"ctx": {"error": problem.msg}}], route), pydantic=True
        ) from None
    if isinstance(body, dict):
        return body
    if route == "/v1/chat/completions":
        raise Broken
    if route == "/generate":
        raise _no_object(body)
    raise shapes.unfit([_error("model_attributes_type", (), _NO_OBJECT, body)], route)


def _error(kind: str, loc: tuple[Any, ...], message: str, given: object) -> dict[str, Any]:
    return {"type": kind, "loc": loc, "msg": message, "input": given}


def _no_object(given: object) -> Invalid:
    name = "GenerateReqInput"
    message = f"Input should be a dictionary or an instance of {name}"
    detail = _error("dataclass_type", ("body",), message, given) | {"ctx": {"class_name": name}}
    return Invalid(pydantic_message([detail], "/generate"), pydantic=True)


def _not_json(route: str, raw: bytes) -> Invalid:
    """A body of another media type; /generate takes it for bytes."""
    if route == "/generate":
        return _no_object(raw)
    if route.startswith("/v1/messages"):
        return Invalid(f"header.content-type: {_MEDIA}", pydantic=True)
    detail = {"loc": ["header", "content-type"], "msg": _MEDIA, "type": "value_error"}
    return Invalid(f"1 validation error:\n  {detail} [{detail}]", pydantic=True)
