"""A chat or completion of the engine, told as Ollama tells it: events in, lines of JSON out.

One piece of text, one line, as it comes. What Ollama tells in another way is put together here: a
call of a tool comes in pieces and goes out whole, its arguments an object; the end comes before the
usage and goes out with it. The text itself is not touched. Arguments that are no object (an answer
cut at its cap) can not be told as a call, and are told as the text that they are.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.edge import voices
from gateway.edge.dialects.ollama_turns import call_id
from gateway.upstream.answer import error_in, error_status
from gateway.upstream.fields import as_list

if TYPE_CHECKING:
    from gateway.edge.dialects import Times

MOST_BYTES: Final = 8 << 20
"""Of one event, the calls of one answer, or a whole one. As much as is read of one that is not streamed
(`relay.FACTS_BYTES`): a million tokens of arguments are below it."""

PIECE_BYTES: Final = 256
"""What a piece of a call counts at least: an engine gone mad could send them empty."""

NS: Final = 1_000_000_000

_BOUNDARY = re.compile(rb"\r?\n\r?\n")

Json = dict[str, Any]


class Shape(StrEnum):
    """Which of Ollama's two answers, and what the engine's looks like."""

    CHAT = "chat"  # a message, from a chat
    GENERATE = "generate"  # a response, from a chat
    RAW = "raw"  # a response, from a completion


class OllamaTeller:
    """See `Teller`. One for each answer."""

    most_bytes = MOST_BYTES

    def __init__(self, shape: Shape, model: str, times: Times) -> None:
        """`model` is the name told in each line."""
        self._shape = shape
        self._model = model
        self._times = times
        self._first: float | None = None  # output of a stream
        self._pending = bytearray()
        self._calls: dict[int, Json] = {}
        self._calls_bytes = 0
        self._reason: str | None = None
        self._usage: Json = {}
        self._ended = False  # nothing is told any more

    # ---- streams ---------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """See `Teller.feed`."""
        if self._ended:
            return b""
        pending, out = self._pending, bytearray()
        start, search = 0, max(len(pending) - 3, 0)
        pending += data
        while (boundary := _BOUNDARY.search(pending, search)) is not None:
            out += self._event(bytes(pending[start : boundary.start()]))
            start = search = boundary.end()
        del pending[:start]
        if len(pending) > MOST_BYTES:
            out += self._too_large()
        return bytes(out)

    def finish(self) -> bytes:
        """See `Teller.finish`. An event without its blank line counts."""
        rest = bytes(self._pending)
        self._pending.clear()
        out = self._event(rest) if rest else b""
        return out + (self._end() if self._reason is not None else b"")

    def _event(self, event: bytes) -> bytes:
        if self._ended:
            return b""
        payload = _payload(event)
        if payload == b"[DONE]":
            return self._end()
        document = _parsed(payload)
        if document is None:
            return b""
        if "error" in document and (error := error_in(document)) is not None:
            self._ended = True
            return voices.OLLAMA.event(error, error_status(error))
        if isinstance(usage := document.get("usage"), dict):
            self._usage = usage
        choice = _first(document.get("choices"))
        if choice is None:
            return b""
        delta = choice if self._shape is Shape.RAW else choice.get("delta")
        out = self._piece(delta if isinstance(delta, dict) else {}, choice.get("logprobs"))
        if isinstance(reason := choice.get("finish_reason"), str):
            self._reason = reason
        return out

    def _piece(self, delta: Json, logprobs: object) -> bytes:
        """A line, where there is something new to tell."""
        if (calls := delta.get("tool_calls")) is not None:
            self._collect(calls)
        if self._calls_bytes > MOST_BYTES:
            return self._too_large()
        text, thoughts = _said(delta)
        found = {} if logprobs is None else _logprobs(logprobs)
        if not text and not thoughts and not found:
            return b""
        if self._first is None:
            self._first = self._times.now()
        return self._line(self._content(text, thoughts) | found)

    def _collect(self, calls: object) -> None:
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                continue
            index = call.get("index")
            index = index if isinstance(index, int) else len(self._calls)
            kept = self._calls.setdefault(index, {"id": "", "name": "", "arguments": []})
            if isinstance(ident := call.get("id"), str) and ident:
                kept["id"] = ident
            if isinstance(name := function.get("name"), str) and name:
                kept["name"] = name
            if isinstance(part := function.get("arguments"), str):
                kept["arguments"].append(part)
                self._calls_bytes += len(part)
            self._calls_bytes += PIECE_BYTES
            if self._first is None:
                self._first = self._times.now()

    def _called(self) -> bytes:
        """The line with the calls of tools, where there are any."""
        found = [
            (call["id"], call["name"], "".join(call["arguments"])) for call in self._calls.values()
        ]
        self._calls.clear()
        content = self._with_calls(self._content("", ""), found)
        return self._line(content) if found else b""

    def _end(self) -> bytes:
        """The last line, once."""
        if self._ended:
            return b""
        self._ended = True
        out = self._called()  # none comes after it
        last = self._content("", "") | self._ending(self._reason, self._usage)
        return out + self._line(last, done=True)

    def _too_large(self) -> bytes:
        self._ended = True
        words = f"a part of the server's answer is larger than {MOST_BYTES} bytes"
        return voices.OLLAMA.event({"message": words, "code": "upstream_error"}, 502)

    # ---- whole answers ---------------------------------------------------------------------------

    def whole(self, body: bytes) -> bytes | None:
        """See `Teller.whole`."""
        document = _parsed(body)
        choice = None if document is None else _first(document.get("choices"))
        if document is None or choice is None:
            return None
        message = choice if self._shape is Shape.RAW else choice.get("message")
        if not isinstance(message, dict):
            return None
        content = self._content(*_said(message))
        calls = [call for call in as_list(message.get("tool_calls")) if isinstance(call, dict)]
        content = self._with_calls(content, [_call(call) for call in calls])
        usage, reason = document.get("usage"), choice.get("finish_reason")
        ending = self._ending(
            reason if isinstance(reason, str) else None, usage if isinstance(usage, dict) else {}
        )
        told = content | _logprobs(choice.get("logprobs")) | ending
        try:
            return self._dumped(told, done=True)
        except orjson.JSONEncodeError:
            return None

    # ---- words -----------------------------------------------------------------------------------

    def _content(self, text: str, thoughts: str) -> Json:
        if self._shape is Shape.CHAT:
            message = {"role": "assistant", "content": text}
            return {"message": message | ({"thinking": thoughts} if thoughts else {})}
        return {"response": text} | ({"thinking": thoughts} if thoughts else {})

    def _with_calls(self, content: Json, calls: list[tuple[str, str, str]]) -> Json:
        """`content` with calls, or with the text of those that are none."""
        told: list[Json] = []
        chat = self._shape is Shape.CHAT
        holder: Json = content["message"] if chat else content
        for index, (ident, name, arguments) in enumerate(calls):
            parsed = _parsed(arguments.encode()) if arguments.strip() else {}
            if parsed is None:
                holder["content" if chat else "response"] += f"{name}{arguments}"
                continue
            function = {"index": index, "name": name, "arguments": parsed}
            told.append({"id": ident or call_id(index), "function": function})
        if told:
            holder["tool_calls"] = told
        return content

    def _ending(self, reason: str | None, usage: Json) -> Json:
        """What Ollama tells at the end. Durations are nanoseconds: what passed before the server had
        the request counts as loading, then to the first output as reading the prompt. An answer in
        one piece does not tell when its first output came: all of it counts as writing."""
        times, now = self._times, self._times.now()
        first = times.granted if self._first is None else self._first
        return {
            "done_reason": "stop" if reason in (None, "tool_calls", "function_call") else reason,
            "total_duration": nanoseconds(now - times.arrived),
            "load_duration": nanoseconds(times.granted - times.arrived),
            "prompt_eval_count": _count(usage.get("prompt_tokens")),
            "prompt_eval_duration": nanoseconds(first - times.granted),
            "eval_count": _count(usage.get("completion_tokens")),
            "eval_duration": nanoseconds(now - first),
        }

    def _dumped(self, content: Json, *, done: bool) -> bytes:
        head = {"model": self._model, "created_at": self._times.wall()}
        return orjson.dumps(head | content | {"done": done})

    def _line(self, content: Json, *, done: bool = False) -> bytes:
        try:
            return self._dumped(content, done=done) + b"\n"
        except orjson.JSONEncodeError:  # arguments nested deeper than can be written
            self._ended = True
            words = {
                "message": "the server's answer is nested too deeply",
                "code": "upstream_error",
            }
            return voices.OLLAMA.event(words, 502)


def _payload(event: bytes) -> bytes:
    """The data of an event; empty where it has none."""
    if event.startswith(b"data: ") and b"\n" not in event:  # nearly always
        return event[6:].strip()
    lines = event.replace(b"\r\n", b"\n").split(b"\n")
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))


def nothing(shape: Shape, model: str, at: str, reason: str) -> Json:
    """An answer without a text, for a request without a prompt."""
    empty = {"message": {"role": "assistant", "content": ""}}
    said = empty if shape is Shape.CHAT else {"response": ""}
    return {"model": model, "created_at": at, **said, "done_reason": reason, "done": True}


def _said(message: Json) -> tuple[str, str]:
    """The text and the thoughts of a message, or of a piece of one."""
    text, thoughts = message.get("content", message.get("text")), message.get("reasoning_content")
    return text if isinstance(text, str) else "", thoughts if isinstance(thoughts, str) else ""


def _call(call: Json) -> tuple[str, str, str]:
    ident, function = call.get("id"), call.get("function")
    known = function if isinstance(function, dict) else {}
    name, arguments = known.get("name"), known.get("arguments")
    return (
        ident if isinstance(ident, str) else "",
        name if isinstance(name, str) else "",
        arguments if isinstance(arguments, str) else "",
    )


def _logprobs(found: object) -> Json:
    content = found.get("content") if isinstance(found, dict) else None
    return {"logprobs": content} if isinstance(content, list) and content else {}


def _first(choices: object) -> Json | None:
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else None


def _parsed(data: bytes) -> Json | None:
    try:
        document = orjson.loads(data)
    except (orjson.JSONDecodeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama tells it."""
    return max(0, round(seconds * NS))
