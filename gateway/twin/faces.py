"""The routes that generate, count and abort, as handlers over a TwinServer."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.twin import bodies, facts, tokenizer
from gateway.twin.asks import Ask, Dialect, Invalid, missing, parse, pydantic_message
from gateway.twin.flow import Flow
from gateway.twin.process import Life
from gateway.twin.wire import empty, event_stream, json_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.twin.server import TwinServer

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY = 1 << 30  # bytes; SGLang sets no limit of its own


def application(server: TwinServer) -> web.Application:
    """The aiohttp application of `server`."""

    @web.middleware
    async def alive(request: web.Request, handler: Handler) -> web.StreamResponse:
        if server.process.life is not Life.READY:
            await asyncio.Event().wait()  # accepted, never answered, until the socket is cut
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return json_answer({"detail": "Not Found"}, 404)
        except web.HTTPMethodNotAllowed:
            return json_answer({"detail": "Method Not Allowed"}, 405)

    app = web.Application(client_max_size=MAX_BODY, middlewares=[alive])
    face = Face(server)
    post = app.router.add_post
    post("/v1/chat/completions", face.chat)
    post("/v1/completions", face.completion)
    post("/generate", face.generate)
    post("/tokenize", face.tokenize)
    post("/v1/tokenize", face.tokenize)
    post("/abort_request", face.abort)
    facts.add_routes(app, server)
    return app


class BadBody(Exception):
    """The body is not a JSON object; `answer` is the 400."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__("the body is not a JSON object")
        self.answer = answer


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

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """POST /tokenize: what admission will count."""
        try:
            body = await _read(request)
        except BadBody as bad:
            return bad.answer
        messages, prompt = body.get("messages"), body.get("prompt")
        if isinstance(messages, list) and self._traits.tokenizes_messages:
            tools = None if body.get("tool_choice") == "none" else body.get("tools")
            tokens: list[Any] = tokenizer.ids(tokenizer.render(messages, tools))
            count: Any = len(tokens)
        elif prompt is None:
            return await self._refuse(
                request, Dialect.COMPLETION, body, missing("prompt", body, request.path)
            )
        elif isinstance(prompt, list):
            tokens = [tokenizer.ids(str(item).encode()) for item in prompt]
            count = [len(item) for item in tokens]
        else:
            tokens = tokenizer.ids(str(prompt).encode())
            count = len(tokens)
        limit = self._server.profile.context
        return json_answer({"tokens": tokens, "count": count, "max_model_len": limit})

    async def abort(self, request: web.Request) -> web.StreamResponse:
        """POST /abort_request: by rid prefix, or everything."""
        try:
            body = await _read(request)
        except BadBody as bad:
            return bad.answer
        rid = str(body.get("rid") or "")
        if rid or body.get("abort_all") or self._traits.empty_rid_aborts_all:
            self._server.abort("" if body.get("abort_all") else rid)
        return empty()

    async def _answer(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        server = self._server
        try:
            body = await _read(request)
        except BadBody as bad:
            return bad.answer
        try:
            ask = self._parse(dialect, body)
        except Invalid as refusal:
            if refusal.length and self._traits.leaks_refusals:
                server.process.leaked += 1
            return await self._refuse(request, dialect, body, refusal)
        started = server.now()
        flow = Flow(request, ask, server.submit(ask), self._traits)
        try:
            answer = await (flow.stream() if ask.stream else flow.collect())
        except (asyncio.CancelledError, ConnectionResetError):
            server.leave(ask, started, flowing=flow.flowing)
            raise
        server.forget(ask)
        return answer

    def _parse(self, dialect: Dialect, body: dict[str, Any]) -> Ask:
        profile = self._server.profile
        ask = parse(dialect, body, self._traits, model=profile.model, context=profile.context)
        if any(item.rid in self._server.inboxes for item in ask.sequences):
            message = f"Duplicate request ID detected: {ask.rid}"
            raise Invalid(message)
        return ask

    async def _refuse(
        self, request: web.Request, dialect: Dialect, body: dict[str, Any], refusal: Invalid
    ) -> web.StreamResponse:
        """A 400; inside a 200 stream for /generate, and in 0.5.6 for every stream."""
        error: dict[str, Any]
        streams = bool(body.get("stream")) and not refusal.pydantic
        if dialect is Dialect.GENERATE:
            error = {"message": refusal.message}
            if streams and self._traits.snapshot_loads:  # 0.5.17 added the three fields
                error |= {"type": "invalid_request_error", "code": 400, "retryable": False}
            whole: dict[str, Any] = {"error": error}
        else:
            kind = "Bad Request" if refusal.pydantic else "BadRequestError"
            error = bodies.openai_error(refusal.message, 400, kind)
            whole = error
            streams = streams and not self._traits.headers_with_first_token
        if not streams:
            return json_answer(whole, 400)
        response = event_stream()
        await response.prepare(request)
        await response.write(bodies.event({"error": error}) + bodies.DONE)
        return response


async def _read(request: web.Request) -> dict[str, Any]:
    """The JSON body. Raises BadBody with the 400 that SGLang answers."""
    raw = await request.read()
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if isinstance(body, dict):
        return body
    detail = (
        "{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error', 'input': {}, "
        "'ctx': {'error': 'unexpected end of data'}}"
    )
    message = pydantic_message(detail, request.path)
    raise BadBody(json_answer(bodies.openai_error(message, 400, "Bad Request"), 400))
