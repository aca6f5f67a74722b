"""The routes: SGLang's data plane as handlers over a TwinServer."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.twin import bodies, facts, tokenizer
from gateway.twin.asks import Ask, Dialect, Invalid, parse, pydantic_message
from gateway.twin.jobs import Ending, Finished, Progress
from gateway.twin.process import Life

if TYPE_CHECKING:
    from gateway.twin.server import Inbox, TwinServer

MAX_BODY = 1 << 30  # SGLang sets no limit of its own


def application(server: TwinServer) -> web.Application:
    """The aiohttp application of `server`."""

    @web.middleware
    async def alive(request: web.Request, handler: Any) -> web.StreamResponse:
        if server.process.life is not Life.READY:
            await asyncio.Event().wait()  # accepted, never answered, until the socket is cut
        response: web.StreamResponse = await handler(request)
        return response

    app = web.Application(client_max_size=MAX_BODY, middlewares=[alive])
    face = Face(server)
    post, get = app.router.add_post, app.router.add_get
    post("/v1/chat/completions", face.chat)
    post("/v1/completions", face.completion)
    post("/generate", face.generate)
    post("/tokenize", face.tokenize)
    post("/v1/tokenize", face.tokenize)
    post("/abort_request", face.abort)
    facts.add_routes(app, server)
    return app


class Face:
    """The routes that generate, count and abort."""

    def __init__(self, server: TwinServer) -> None:
        self.server = server
        self.traits = server.traits

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
        """POST /tokenize: what admission will count, by the engine's own path."""
        body = await _read(request)
        if isinstance(body, web.Response):
            return body
        messages = body.get("messages")
        if isinstance(messages, list) and self.traits.tokenizes_messages:
            prompts, one = [tokenizer.render(messages, body.get("tools"))], True
        else:
            value = body.get("prompt", "")
            one = isinstance(value, str)
            prompts = [value.encode()] if isinstance(value, str) else [item.encode() for item in value]
        tokens = [tokenizer.ids(prompt) for prompt in prompts]
        return _json(
            {
                "tokens": tokens[0] if one else tokens,
                "count": len(tokens[0]) if one else [len(item) for item in tokens],
                "max_model_len": self.server.profile.context,
            }
        )

    async def abort(self, request: web.Request) -> web.StreamResponse:
        """POST /abort_request: by rid prefix, or everything."""
        body = await _read(request)
        if isinstance(body, web.Response):
            return body
        rid = str(body.get("rid") or "")
        if body.get("abort_all") or (not rid and self.traits.empty_rid_aborts_all):
            self.server.abort("")
        elif rid:
            self.server.abort(rid)
        return web.Response()

    # ---- generation

    async def _answer(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        body = await _read(request)
        if isinstance(body, web.Response):
            return body
        server = self.server
        try:
            ask = parse(
                dialect,
                body,
                self.traits,
                model=server.profile.model,
                context=server.profile.context,
            )
            if any(item.rid in server.inboxes for item in ask.sequences):
                raise Invalid(f"Duplicate request ID detected: {ask.rid}")
        except Invalid as refusal:
            return await self._refuse(request, dialect, body, refusal)
        started = server.now()
        inbox = server.submit(ask)
        flow = Flow(self, request, ask, inbox, started)
        try:
            answer = await (flow.stream() if ask.stream else flow.collect())
        except (asyncio.CancelledError, ConnectionResetError):
            server.leave(ask, started, flowing=flow.flowing)
            raise
        server.forget(ask)
        return answer

    async def _refuse(
        self, request: web.Request, dialect: Dialect, body: dict[str, Any], refusal: Invalid
    ) -> web.StreamResponse:
        if dialect is Dialect.GENERATE:
            error: dict[str, Any] = {"message": refusal.message}
            if not body.get("stream"):
                return _json({"error": error}, 400)
            if self.traits.snapshot_loads:  # 0.5.17 added the three fields
                error |= {"type": "invalid_request_error", "code": 400, "retryable": False}
            response = _event_stream()
            await response.prepare(request)
            await response.write(bodies.event({"error": error}) + bodies.DONE)
            return response
        kind = "Bad Request" if refusal.pydantic else "BadRequestError"
        return _json(bodies.openai_error(refusal.message, 400, kind), 400)


class Flow:
    """One request on its way: events in, bytes out."""

    def __init__(
        self, face: Face, request: web.Request, ask: Ask, inbox: Inbox, started: float
    ) -> None:
        self.traits = face.traits
        self.server = face.server
        self.request = request
        self.ask = ask
        self.inbox = inbox
        self.started = started
        self.created = int(time_of_day())
        self.flowing = False
        self.sent = dict.fromkeys((item.rid for item in ask.sequences), 0)
        self.by_rid = {item.rid: item for item in ask.sequences}
        self.ends: dict[str, Finished] = {}

    def text(self, rid: str, start: int, stop: int) -> str:
        """Generated text of `rid`, tokens `start` to `stop`."""
        return tokenizer.text(sum(rid.encode()) + self.by_rid[rid].choice, start, stop)

    async def collect(self) -> web.Response:
        """A whole answer."""
        while len(self.ends) < len(self.ask.sequences):
            event = await self.inbox.get()
            if isinstance(event, Finished):
                self.ends[event.rid] = event
        for end in self.ends.values():
            if end.status is not None:
                return self._failed(end)
        if self.ask.dialect is Dialect.GENERATE:
            answers = [self._generated(item.rid) for item in self.ask.sequences]
            return _json(answers if len(answers) > 1 or self.ask.listed else answers[0])
        out = sum(end.out for end in self.ends.values())
        if self.ask.dialect is Dialect.CHAT:
            kind = "chat.completion"
            choices = [
                bodies.chat_choice(
                    self.traits,
                    item.choice,
                    self.text(item.rid, 0, self.ends[item.rid].out),
                    self.ends[item.rid].ending,
                )
                for item in self.ask.sequences
            ]
        else:
            kind = "text_completion"
            choices = [
                bodies.text_choice(
                    item.choice,
                    self.text(item.rid, 0, self.ends[item.rid].out),
                    self.ends[item.rid].ending,
                )
                for item in self.ask.sequences
            ]
        return _json(bodies.whole(self.traits, self.ask, kind, self.created, choices, out))

    def _failed(self, end: Finished) -> web.Response:
        status = end.status or 500
        if self.ask.dialect is Dialect.GENERATE and status == 400:  # noqa: PLR2004
            return _json({"error": {"message": end.message}}, status)
        kind = "BadRequestError" if status == 400 else str(status)  # noqa: PLR2004
        return _json(bodies.openai_error(end.message, status, kind), status)

    def _generated(self, rid: str) -> dict[str, Any]:
        end = self.ends[rid]
        text = self.text(rid, 0, end.out)
        return self._generate_body(rid, text, end.out, end)

    def _generate_body(self, rid: str, text: str, out: int, end: Finished | None) -> dict[str, Any]:
        sequence = self.by_rid[rid]
        job = self.server.engine.job(rid)
        extra = {
            "finish_reason": None if end is None else bodies.finish_reason(end),
            "num_retractions": job.retractions if job else 0,
            "queue_time": max(0.0, job.admitted - job.arrived) if job else 0.0,
            "cached_tokens": job.cached if job else 0,
        }
        if end is not None:
            extra["e2e_latency"] = end.at - self.started
        prompt = tokenizer.count(sequence.prompt)
        return {
            "text": text,
            "output_ids": tokenizer.ids(text.encode()),
            "meta_info": bodies.meta_info(self.traits, sequence, prompt, out, extra),
        }

    async def stream(self) -> web.StreamResponse:
        """An answer as server-sent events. From 0.5.12 on the headers wait for the first event."""
        response = _event_stream()
        if not self.traits.headers_with_first_token:
            await response.prepare(self.request)
        while len(self.ends) < len(self.ask.sequences):
            event = await self.inbox.get()
            if not response.prepared:
                await response.prepare(self.request)
            await response.write(self._bytes(event))
            self.flowing = True
            if isinstance(event, Finished):
                self.ends[event.rid] = event
                if event.status is not None and self.ask.dialect is not Dialect.GENERATE:
                    break
        await response.write(self._ending())
        return response

    def _bytes(self, event: Progress | Finished) -> bytes:
        if isinstance(event, Finished) and event.status is not None:
            if self.ask.dialect is not Dialect.GENERATE:
                return bodies.stream_error(event.message, event.status)
        match self.ask.dialect:
            case Dialect.CHAT:
                return self._chat_bytes(event)
            case Dialect.COMPLETION:
                return self._completion_bytes(event)
            case Dialect.GENERATE:
                end = event if isinstance(event, Finished) else None
                text = self.text(event.rid, 0, event.out)
                return bodies.event(self._generate_body(event.rid, text, event.out, end))

    def _chat_bytes(self, event: Progress | Finished) -> bytes:
        sequence = self.by_rid[event.rid]
        sent, self.sent[event.rid] = self.sent[event.rid], event.out
        out = b""
        if sent == 0:
            first = bodies.chat_delta(sequence.choice, {"role": "assistant", "content": ""})
            out += bodies.event(self._chat_chunk(event.rid, first))
        if event.out > sent:
            delta = {"content": self.text(event.rid, sent, event.out)}
            chunk = self._chat_chunk(event.rid, bodies.chat_delta(sequence.choice, delta))
            if self.ask.continuous_usage:
                prompt = tokenizer.count(sequence.prompt)
                chunk["usage"] = bodies.usage(self.traits, prompt, event.out)
            out += bodies.event(chunk)
        return out

    def _chat_chunk(self, rid: str, choice: dict[str, Any]) -> dict[str, Any]:
        return bodies.chat_chunk(self.ask, rid, self.created, [choice])

    def _completion_bytes(self, event: Progress | Finished) -> bytes:
        sequence = self.by_rid[event.rid]
        sent, self.sent[event.rid] = self.sent[event.rid], event.out
        ending = event.ending if isinstance(event, Finished) else None
        text = self.text(event.rid, sent, event.out)
        use = None
        if self.ask.continuous_usage:
            use = bodies.usage(self.traits, tokenizer.count(sequence.prompt), event.out)
        choice = bodies.text_choice(sequence.choice, text, ending)
        return bodies.event(
            bodies.text_chunk(self.ask, event.rid, self.created, [choice], use)
        )

    def _ending(self) -> bytes:
        if self.ask.dialect is Dialect.GENERATE:
            return bodies.DONE
        failed = any(end.status is not None for end in self.ends.values())
        out = b""
        last = next(reversed(self.ends))
        if self.ask.dialect is Dialect.CHAT and not failed:
            for rid, end in self.ends.items():
                choice = bodies.chat_delta(self.by_rid[rid].choice, {}, end.ending)
                out += bodies.event(self._chat_chunk(last, choice))
        if self.ask.include_usage:
            out += bodies.event(self._usage_chunk(last))
        return out + bodies.DONE

    def _usage_chunk(self, rid: str) -> dict[str, Any]:
        failed = any(end.status is not None for end in self.ends.values())
        prompt = 0 if failed else self.ask.prompt_tokens
        use = bodies.usage(self.traits, prompt, sum(end.out for end in self.ends.values()))
        if self.ask.dialect is Dialect.CHAT:
            return {**bodies.chat_chunk(self.ask, rid, self.created, []), "usage": use}
        use.pop("prompt_tokens_details")
        return bodies.text_chunk(self.ask, rid, self.created, [], use)


def time_of_day() -> float:
    """Wall time for `created`."""
    return time.time()  # noqa: TID251 - the body's own field is wall time


async def _read(request: web.Request) -> dict[str, Any] | web.Response:
    """The JSON body, or the 400 that SGLang answers."""
    raw = await request.read()
    try:
        body = json.loads(raw)
    except ValueError:
        detail = (
            "{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error', "
            "'input': {}, 'ctx': {'error': 'unexpected end of data'}}"
        )
        message = pydantic_message(detail, request.path)
        return _json(bodies.openai_error(message, 400, "Bad Request"), 400)
    if not isinstance(body, dict):
        detail = "{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary'}"
        message = pydantic_message(detail, request.path)
        return _json(bodies.openai_error(message, 400, "Bad Request"), 400)
    return body


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=bodies.dumps(value),
        status=status,
        content_type="application/json",
        headers={"server": "uvicorn", "vary": "Origin"},
    )


def _event_stream() -> web.StreamResponse:
    return web.StreamResponse(
        headers={
            "content-type": "text/event-stream; charset=utf-8",
            "server": "uvicorn",
            "vary": "Origin",
        }
    )


__all__ = ["Ending", "application"]
