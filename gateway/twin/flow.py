"""One request on its way out: engine events in, SGLang's bytes out.

From 0.5.12 on, a stream's headers wait for its first event, so a client learns nothing before the
first token; a scheduler's abort then comes as an error event inside a 200. In 0.5.6 the headers come
at once, and a scheduler's abort breaks the connection (its handler raises KeyError).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gateway.twin import anthropic, bodies, tokenizer
from gateway.twin.asks import Ask, Dialect
from gateway.twin.jobs import Finished, Progress
from gateway.twin.wire import event_stream, json_answer

if TYPE_CHECKING:
    from aiohttp import web

    from gateway.twin.bodies import Json
    from gateway.twin.inbox import Inbox
    from gateway.twin.versions import Traits


class Flow:
    """The answer to one `Ask`. `flowing` says that bytes of a stream are out."""

    def __init__(self, request: web.Request, ask: Ask, inbox: Inbox, traits: Traits) -> None:
        self.flowing = False
        self._request = request
        self._ask = ask
        self._inbox = inbox
        self._traits = traits
        self._created = int(time.time())  # noqa: TID251 - the body's own field is wall time
        self._sequences = {item.rid: item for item in ask.sequences}
        self._sent = dict.fromkeys(self._sequences, 0)
        self._ends: dict[str, Finished] = {}

    async def collect(self) -> web.Response:
        """A whole answer."""
        while len(self._ends) < len(self._sequences):
            event = await self._inbox.get()
            if isinstance(event, Finished):
                self._ends[event.rid] = event
        for end in self._ends.values():
            if end.status is not None:
                return self._failed(end, end.status)
        ends = [(item.choice, self._ends[item.rid]) for item in self._ask.sequences]
        if self._ask.dialect is Dialect.GENERATE:
            answers = [self._generated(end) for _, end in ends]
            return json_answer(answers if self._ask.listed or len(answers) > 1 else answers[0])
        if self._ask.dialect is Dialect.MESSAGES:
            ((_, end),) = ends
            return json_answer(
                anthropic.whole(
                    self._ask.rid,
                    self._ask.model,
                    text=self._text(end, 0),
                    ending=end.ending,
                    prompt=self._ask.prompt_tokens,
                    out=end.out,
                )
            )
        choices = [self._choice(at, end) for at, end in ends]
        out = sum(end.out for _, end in ends)
        return json_answer(bodies.whole(self._traits, self._ask, self._created, choices, out))

    async def stream(self) -> web.StreamResponse:
        """An answer as server-sent events."""
        response = event_stream()
        if not self._traits.headers_with_first_token:
            await response.prepare(self._request)
        while len(self._ends) < len(self._sequences):
            event = await self._inbox.get()
            if isinstance(event, Finished):
                self._ends[event.rid] = event
                if self._breaks(event):
                    if self._request.transport is not None:
                        self._request.transport.abort()
                    return response
            if not response.prepared:
                await response.prepare(self._request)
            await response.write(self._bytes(event))
            self.flowing = True
            if self._is_error(event):
                break
        await response.write(self._ending())
        return response

    # ---- pieces

    def _is_error(self, event: Progress | Finished) -> bool:
        """An abort by the scheduler, which the OpenAI routes turn into an error event."""
        failed = isinstance(event, Finished) and event.status is not None
        return failed and self._ask.dialect is not Dialect.GENERATE

    def _breaks(self, event: Finished) -> bool:
        return self._is_error(event) and not self._traits.headers_with_first_token

    def _text(self, event: Progress | Finished, start: int) -> str:
        choice = self._sequences[event.rid].choice
        return tokenizer.text(sum(event.rid.encode()) + choice, start, event.out)

    def _choice(self, at: int, end: Finished) -> Json:
        text = self._text(end, 0)
        if self._ask.dialect is Dialect.CHAT:
            return bodies.chat_choice(self._traits, at, text, end.ending)
        return bodies.text_choice(at, text, end.ending)

    def _prompt(self, rid: str) -> int:
        return tokenizer.count(self._sequences[rid].prompt)

    def _failed(self, end: Finished, status: int) -> web.Response:
        if self._ask.dialect is Dialect.MESSAGES:
            return json_answer(*anthropic.failed(status, end.message))
        bad = status == bodies.HTTP_BAD
        if bad and self._ask.dialect is Dialect.GENERATE:
            return json_answer({"error": {"message": end.message}}, status)
        kind = "BadRequestError" if bad else str(status)
        return json_answer(bodies.openai_error(end.message, status, kind), status)

    def _generated(self, event: Progress | Finished) -> Json:
        text = self._text(event, 0)
        return {
            "text": text,
            "output_ids": tokenizer.ids(text.encode()),
            "meta_info": bodies.meta_info(self._traits, event, self._prompt(event.rid)),
        }

    def _bytes(self, event: Progress | Finished) -> bytes:
        if isinstance(event, Finished) and event.status is not None and self._is_error(event):
            if self._ask.dialect is Dialect.MESSAGES:
                begun = b"" if self.flowing else anthropic.start(self._ask.rid, self._ask.model, 0)
                return begun + anthropic.broken(event.status, event.message)
            return bodies.stream_error(event.message, event.status)
        match self._ask.dialect:
            case Dialect.MESSAGES:
                return self._message_bytes(event)
            case Dialect.CHAT:
                return self._chat_bytes(event)
            case Dialect.COMPLETION:
                return self._completion_bytes(event)
            case Dialect.GENERATE:
                told = self._generated(event)
                if len(self._sequences) > 1:
                    told["index"] = self._sequences[event.rid].choice
                return bodies.event(told)

    def _chat_bytes(self, event: Progress | Finished) -> bytes:
        choice = self._sequences[event.rid].choice
        sent, self._sent[event.rid] = self._sent[event.rid], event.out
        out = b""
        if sent == 0:
            role = bodies.chat_delta(choice, {"role": "assistant", "content": ""})
            out += bodies.event(bodies.chat_chunk(self._ask, event.rid, self._created, [role]))
        if event.out > sent:
            delta = bodies.chat_delta(choice, {"content": self._text(event, sent)})
            chunk = bodies.chat_chunk(self._ask, event.rid, self._created, [delta])
            if self._ask.continuous_usage:
                chunk["usage"] = bodies.usage(self._traits, self._prompt(event.rid), event.out)
            out += bodies.event(chunk)
        return out

    def _completion_bytes(self, event: Progress | Finished) -> bytes:
        sent, self._sent[event.rid] = self._sent[event.rid], event.out
        ending = event.ending if isinstance(event, Finished) else None
        choice = bodies.text_choice(
            self._sequences[event.rid].choice, self._text(event, sent), ending
        )
        use = None
        if self._ask.continuous_usage:
            use = bodies.usage(self._traits, self._prompt(event.rid), event.out)
        return bodies.event(bodies.text_chunk(self._ask, event.rid, self._created, [choice], use))

    def _message_bytes(self, event: Progress | Finished) -> bytes:
        sent, self._sent[event.rid] = self._sent[event.rid], event.out
        out = b""
        if not self.flowing:
            out += anthropic.start(self._ask.rid, self._ask.model, self._ask.prompt_tokens)
            out += anthropic.block()
        return out + (anthropic.delta(self._text(event, sent)) if event.out > sent else b"")

    def _ending(self) -> bytes:
        """What follows the last token: finish reasons of a chat, usage when asked for, [DONE]."""
        if self._ask.dialect is Dialect.GENERATE:
            return bodies.DONE
        failed = any(end.status is not None for end in self._ends.values())
        if self._ask.dialect is Dialect.MESSAGES:
            (end,) = self._ends.values()
            return anthropic.stop() if failed else anthropic.end(end.ending, end.out)
        last = next(reversed(self._ends))
        out = b""
        if self._ask.dialect is Dialect.CHAT and not failed:
            for rid, end in self._ends.items():
                choice = bodies.chat_delta(self._sequences[rid].choice, {}, end.ending)
                out += bodies.event(bodies.chat_chunk(self._ask, last, self._created, [choice]))
        if self._ask.include_usage:
            out += bodies.event(self._usage_chunk(last, failed=failed))
        return out + bodies.DONE

    def _usage_chunk(self, rid: str, *, failed: bool) -> Json:
        prompt = 0 if failed else self._ask.prompt_tokens
        made = sum(end.out for end in self._ends.values())
        use = bodies.usage(self._traits, prompt, made)
        if self._ask.dialect is Dialect.CHAT:
            return {**bodies.chat_chunk(self._ask, rid, self._created, []), "usage": use}
        for absent in ("prompt_tokens_details", "completion_tokens_details"):
            use.pop(absent, None)  # in completion streams only
        return bodies.text_chunk(self._ask, rid, self._created, [], use)
