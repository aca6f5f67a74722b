"""What the fake engine reads from a generation body and how it words the answer.

Tokens are counted by one rule a test can do in its head: **one token per word of text** (split at
white space), **plus 4 per message**, plus the words of the tools' JSON; ids count as they are.
`usage.prompt_tokens` and /tokenize follow the same rule. Output text is one word a token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.fakes import typed
from tests.fakes.typed import MESSAGES, MUTE, RESPONSES, TYPED

PER_MESSAGE = 4
UNCAPPED = 1 << 30

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
GENERATION = (CHAT, COMPLETIONS, GENERATE, *TYPED, *MUTE)


def count(body: dict[str, Any]) -> int:
    """Prompt tokens of a body: `messages`, `prompt`, `text` or `input_ids`."""
    return sum(prompts(body))


def prompts(body: dict[str, Any]) -> list[int]:
    """Prompt tokens of each prompt in a body."""
    if (messages := body.get("messages")) is not None:
        tools = body.get("tools")
        extra = _words(json.dumps(tools)) if tools else 0
        return [sum(_content(m.get("content")) + PER_MESSAGE for m in messages) + extra]
    given = next((body[k] for k in ("input_ids", "prompt", "text") if k in body), "")
    if isinstance(given, str):
        return [_words(given)]
    if given and isinstance(given[0], int):
        return [len(given)]
    return [_words(one) if isinstance(one, str) else len(one) for one in given]


def _words(text: str) -> int:
    return len(text.split())


def _content(content: Any) -> int:
    if isinstance(content, list):
        return sum(_words(part.get("text", "")) for part in content)
    return _words(content or "")


@dataclass(frozen=True)
class Job:
    """One generation as the engine understood it."""

    path: str
    rid: str
    model: str
    stream: bool
    prompts: list[int]
    n: int
    cap: int  # output tokens per sequence
    usage: bool  # a last event with usage was asked for
    usage_each: bool

    @property
    def sequences(self) -> int:
        return len(self.prompts) * self.n

    @classmethod
    def read(cls, path: str, body: dict[str, Any], fallback_rid: str) -> Job:
        params = body.get("sampling_params") or {}
        names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
        caps = [params.get("max_new_tokens")] if path == GENERATE else [body.get(n) for n in names]
        options = body.get("stream_options") or {}
        rid = body.get("request_id" if path == RESPONSES else "rid") or fallback_rid
        rid = fallback_rid if path == MESSAGES else rid
        return cls(
            path=path,
            rid=rid if isinstance(rid, str) else rid[0],
            model=body.get("model") or "tiny",
            stream=bool(body.get("stream")),
            prompts=prompts(typed.readable(path, body)),
            n=(params if path == GENERATE else body).get("n") or 1,
            cap=0 if path in MUTE else next((cap for cap in caps if cap), UNCAPPED),
            usage=bool(options.get("include_usage")),
            usage_each=bool(options.get("continuous_usage_stats")),
        )

    def usage_body(self, made: int) -> dict[str, Any]:
        """`usage` once each sequence has `made` tokens. A prompt counts once whatever n is."""
        prompt, completion = sum(self.prompts), made * self.sequences
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": None,
        }

    def event(self, index: int, made: int, text: str, finish: str | None) -> dict[str, Any]:
        """One streamed event of sequence `index`, its `made`-th token."""
        if self.path in TYPED:
            return typed.delta(self.path, made, text)
        if self.path == GENERATE:
            words = " ".join(["w"] * (made - 1) + [text]) if made else ""
            return self._generated(index, made, words, finish)
        usage = self.usage_body(made) if self.usage_each else None
        if self.path == CHAT:
            delta = {"content": text} if text else {}
            choice = {"index": index, "delta": delta, "finish_reason": finish}
            body = self._openai("chat.completion.chunk", [choice])
            return body | {"usage": usage} if self.usage_each else body
        choice = {"index": index, "text": text, "finish_reason": finish}
        return self._openai("text_completion", [choice]) | {"usage": usage}

    def first_events(self) -> list[dict[str, Any]]:
        """What a stream says before any token: a chat names the role."""
        if self.path in TYPED:
            return typed.first_events(self.path, self.rid, self.model, sum(self.prompts))
        if self.path != CHAT:
            return []
        delta = {"role": "assistant", "content": ""}
        return [
            self._openai(
                "chat.completion.chunk",
                [{"index": index, "delta": delta, "finish_reason": None}],
            )
            for index in range(self.sequences)
        ]

    def usage_event(self, made: int) -> dict[str, Any]:
        """The last event before [DONE], where usage was asked for."""
        kind = "chat.completion.chunk" if self.path == CHAT else "text_completion"
        return self._openai(kind, []) | {"usage": self.usage_body(made)}

    def whole(self, made: int, text: str, finish: str) -> Any:
        """The answer that is not streamed."""
        if self.path in (*TYPED, *MUTE):
            return typed.whole(self.path, self.rid, self.model, self.prompts, text, finish, made)
        indices = range(self.sequences)
        if self.path == GENERATE:
            answers = [self._generated(index, made, text, finish) for index in indices]
            return answers[0] if len(answers) == 1 else answers
        if self.path == CHAT:
            message = {"role": "assistant", "content": text, "tool_calls": None}
            kind = "chat.completion"
            choices = [{"index": i, "message": message, "finish_reason": finish} for i in indices]
        else:
            kind = "text_completion"
            choices = [{"index": i, "text": text, "finish_reason": finish} for i in indices]
        return self._openai(kind, choices) | {"usage": self.usage_body(made)}

    def error_event(self, status: int, message: str) -> dict[str, Any]:
        """An error inside a stream that began with 200."""
        if self.path in TYPED:
            return typed.error(self.path, status, message) | {"type": "error"}
        if self.path == GENERATE:
            reason = {"type": "abort", "status_code": status, "message": message}
            meta = {"id": self.rid, "finish_reason": reason, "completion_tokens": 0}
            return {"text": "", "output_ids": [], "meta_info": meta}
        kind = {503: "SERVICE_UNAVAILABLE", 400: "BAD_REQUEST"}.get(status, "INTERNAL_SERVER_ERROR")
        error = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
        return {"error": error}

    def _openai(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.rid,
            "object": kind,
            "created": 1795961838,
            "model": self.model,
            "choices": choices,
        }

    def _generated(self, index: int, made: int, text: str, finish: str | None) -> dict[str, Any]:
        reason: dict[str, Any] | None = {"type": finish} if finish else None
        if reason and finish == "length":
            reason["length"] = made
        meta = {
            "id": self.rid if self.sequences == 1 else f"{self.rid}_{index}",
            "finish_reason": reason,
            "prompt_tokens": self.prompts[index // self.n],
            "completion_tokens": made,
            "cached_tokens": 0,
        }
        body = {"text": text, "output_ids": list(range(made)), "meta_info": meta}
        return body if self.sequences == 1 else body | {"index": index}


def error_body(status: int, message: str, path: str = CHAT) -> bytes:
    """SGLang's error over HTTP."""
    if path in TYPED:
        return json.dumps(typed.error(path, status, message)).encode()
    kind = "BadRequestError" if status == 400 else str(status)
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return json.dumps(body).encode()


def sse(event: Any) -> bytes:
    """One server-sent event."""
    if "type" in event:
        return typed.sse(event)
    return b"data: " + json.dumps(event).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
